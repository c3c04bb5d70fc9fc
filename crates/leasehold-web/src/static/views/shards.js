// Shards view: a map with one cell per group of shards, in the colour of the worker that holds it.

import * as api from '../api.js';
import { h } from '../dom.js';
import { count, counted } from '../format.js';
import { card, facts, heading, loadingText, pill, time } from '../parts.js';

const TINTS = 12;
/** Largest number of groups shown with full labels; with more, cells show only the first shard of their group. */
const FEW = 16;
const MARKS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@&';

/** Every worker keeps its colour and letter for as long as the page is open. */
const numbers = new Map();
/** Selected group. */
let chosen = null;

export const isLive = true;
export const title = () => 'Shards';
export const load = () => api.list('shards');

export const announcement = (before, after) => inWords(before) !== inWords(after) && inWords(after);

function inWords({ groups }) {
  const held = groups.filter((group) => group.state === 'held');
  const workers = [...new Set(held.map((group) => group.worker_id))].sort();
  return `${held.length} of ${counted(groups.length, 'group')} held${workers.length > 0 ? ` by ${workers.join(', ')}` : ''}`;
}

export function render({ groups, age_secs: age }, { changed }) {
  const held = groups.filter((group) => group.state === 'held');
  for (const worker of [...new Set(held.map((group) => group.worker_id))].sort()) {
    if (!numbers.has(worker)) numbers.set(worker, numbers.size);
  }
  const shards = groups.reduce((sum, group) => sum + group.count, 0);
  const selected = groups.find((group) => group.shards === chosen);
  return [
    heading('Shards', h('span', { class: 'soft' }, `${counted(shards, 'shard')}, ${held.length} of ${counted(groups.length, 'group')} held`)),
    groups.length === 0 ? h('section', { class: 'card' }, loadingText()) : [
      card('Shard leases', { id: 'map' },
        h('div', { class: 'map', role: 'group', 'aria-label': 'Shard map; arrow keys move', 'data-groups': groups.length > FEW ? 'many' : 'few', onkeydown: move },
          groups.map((group) => field(group, () => { chosen = chosen === group.shards ? null : group.shards; changed(); }))),
        selected ? about(selected) : h('p', { class: 'soft hint' }, 'Select a cell to see its lease. The bar shows its due tasks relative to the fullest cell.')),
      card('Holders', { id: 'holders' }, age === null ? loadingText() : legend(groups, held)),
    ],
  ];

  function field(group, onclick) {
    const most = Math.max(1, ...groups.map((one) => one.due ?? 0));
    const isHeld = group.state === 'held';
    const number = numbers.get(group.worker_id) ?? 0;
    const label = `shards ${group.shards}: ${isHeld ? `held by ${group.worker_id}` : group.state}, ${counted(group.due ?? 0, 'task')} due, ${count(group.running ?? 0)} running`;
    return h('button', {
      type: 'button', key: group.shards, class: `field-cell is-${group.state}${isHeld ? ` tint-${number % TINTS}` : ''}`, onclick, title: label, 'aria-label': label,
      'aria-pressed': chosen === group.shards ? 'true' : 'false', 'data-state': group.state, 'data-holder': isHeld ? group.worker_id : null,
    },
    h('span', { class: 'mono cell-name' }, groups.length > FEW ? group.first : group.shards),
    h('span', { class: 'cell-mark', 'aria-hidden': 'true' }, markOf(group)),
    h('span', { class: `cell-due level-${Math.ceil((group.due ?? 0) / most * 10)}`, 'aria-hidden': 'true' }));
  }
}

function markOf(group) {
  if (group.state === 'held') return MARKS[numbers.get(group.worker_id) % MARKS.length];
  return { expired: '!', corrupt: '?' }[group.state] ?? '·';
}

function about(group) {
  return h('div', { class: 'about' }, facts([
    ['shards', h('span', { class: 'mono' }, group.shards), ` (${count(group.count)})`],
    ['state', pill(group.state)],
    group.worker_id && ['holder', h('span', { class: 'mono' }, group.worker_id)],
    group.epoch !== null && group.epoch !== undefined && ['epoch', count(group.epoch)],
    group.until && ['expires', time(group.until)],
    ['due', count(group.due ?? 0)], ['scheduled', count(group.scheduled ?? 0)], ['running', count(group.running ?? 0)],
  ]));
}

function legend(groups, held) {
  const workers = [...new Set(held.map((group) => group.worker_id))].sort();
  const others = [...new Set(groups.filter((group) => group.state !== 'held').map((group) => group.state))].sort();
  const row = (key, swatch, name, those) => h('li', { key, 'data-worker': key },
    swatch, name,
    h('span', { class: 'soft number' }, `${counted(those.length, 'group')}, ${counted(those.reduce((sum, group) => sum + group.count, 0), 'shard')}`),
    h('span', { class: 'soft when' }, those[0].until && those[0].state === 'held' && ['lease expires ', time(those.map((group) => group.until).sort()[0])]));
  return [
    h('ul', { class: 'holders' },
      workers.map((worker) => row(worker, h('span', { class: `swatch tint-${numbers.get(worker) % TINTS}` }, MARKS[numbers.get(worker) % MARKS.length]),
        h('span', { class: 'mono strong' }, worker), held.filter((group) => group.worker_id === worker))),
      others.map((state) => row(`(${state})`, h('span', { class: `swatch is-${state}` }, { expired: '!', corrupt: '?' }[state] ?? '·'),
        h('span', { class: 'soft' }, state), groups.filter((group) => group.state === state)))),
    workers.length === 0 && h('p', { class: 'soft' }, 'No worker holds a shard lease. To divide the shards among busy workers, start them with ', h('code', {}, '--shard-leasing'), '.'),
  ];
}

/** Moves the focus between cells with the arrow keys, by their position on the page. */
function move(event) {
  const cells = [...event.currentTarget.children];
  const at = cells.indexOf(document.activeElement);
  const columns = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  if (at === -1 || step === undefined) return;
  event.preventDefault();
  cells[at + step]?.focus();
}
