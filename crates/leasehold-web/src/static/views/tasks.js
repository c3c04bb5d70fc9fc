// Tasks view: tasks by status, type, tag or text, in pages. The filter is part of the address.

import * as api from '../api.js';
import { h } from '../dom.js';
import { count, counted } from '../format.js';
import { button, confirm, empty, heading, icon, loadingText, note, taskTable } from '../parts.js';
import { amend, go, link } from '../router.js';

const PAGE = 50;
const STATUSES = ['due', 'scheduled', 'running', 'completed', 'failed', 'cancelled', 'expired'];
const SORTS = [
  ['updated', 'last updated'], ['created', 'newest'], ['waiting', 'longest waiting'],
];
/** Largest number of tasks that the server changes in one request. */
const AT_ONCE = 1_000;
/** Bulk actions, and the statuses that each applies to. */
const ACTIONS = {
  retry: { fits: ['failed', 'cancelled', 'expired'], tone: 'running', title: (many) => `Retry ${many}?`, text: 'The tasks become pending again and their attempts are reset.' },
  cancel: { fits: ['due', 'scheduled', 'running', 'pending'], tone: 'failed', title: (many) => `Cancel ${many}?`, text: 'Pending tasks are cancelled immediately; running ones stop at the next renewal of their claims.' },
};

export const title = () => 'Tasks';

const filterOf = ({ params }) => Object.fromEntries(['status', 'type', 'tag', 'q'].map((name) => [name, params.get(name) ?? '']));

export async function load({ at }) {
  const params = new URLSearchParams(at.params);
  params.set('limit', PAGE);
  return api.tasks(params);
}

export const announcement = (before, after) => before.total !== after.total && counted(after.total, 'task matches', 'tasks match');

export function render(found, { at, overview, changed }) {
  const filter = filterOf(at);
  const isFiltered = Object.values(filter).some(Boolean);
  return [
    heading('Tasks', h('span', { class: 'soft number', id: 'total' }, isFiltered ? counted(found.total, 'task matches', 'tasks match') : counted(found.total, 'task'))),
    filters(filter, at, overview),
    found.is_complete === false && h('p', { class: 'soft' }, 'Still loading tasks; there may be more.'),
    overview?.sample.unlisted > 0 && h('p', { class: 'soft', id: 'unlisted' }, `${counted(overview.sample.unlisted, 'older task is', 'older tasks are')} in the archive and not listed here; \`leasehold list\` has them all.`),
    found.tasks.length > 0
      ? [bulk(found, filter, overview, changed), h('section', { class: 'card flush' }, taskTable(found.tasks, { label: 'Tasks', untaken: overview?.untaken, hasShards: overview?.layout !== 'journal' })), pages(found, at)]
      : h('section', { class: 'card' }, found.is_complete === false ? loadingText() : isFiltered
        ? empty('No tasks match', 'Remove part of the filter to see more.')
        : empty('No tasks yet', 'Submitted tasks appear here automatically.', `leasehold submit -t greet -i '{"name": "Ada"}'`)),
  ];
}

/** Address of the list with changed parameters; starts at the first page unless the offset is given. */
function changedTo(at, changes) {
  const params = { ...Object.fromEntries(at.params), ...changes };
  if (!('offset' in changes)) delete params.offset;
  return link('tasks', params);
}

function filters(filter, at, overview) {
  const counts = overview?.counts ?? {};
  const types = overview?.types.map((one) => one.task_type) ?? [];
  if (filter.type && !types.includes(filter.type)) types.push(filter.type);
  const chip = (status, text, number) => h('a', {
    key: status, class: `chip tone-${status || 'plain'}`, href: changedTo(at, { status }), 'aria-current': filter.status === status && 'true',
  }, text, number > 0 && h('span', { class: 'number soft' }, count(number)));
  return h('div', { class: 'filters', role: 'search' },
    h('div', { class: 'chips', role: 'group', 'aria-label': 'Status' },
      chip('', 'all'), filter.status === 'pending' && chip('pending', 'pending', counts.pending),
      STATUSES.map((status) => chip(status, status, counts[status]))),
    h('div', { class: 'fields' },
      h('label', { class: 'field search' }, h('span', { class: 'spoken' }, 'Search'), icon('search'),
        h('input', {
          id: 'search', type: 'search', placeholder: 'id, type, key, tag, input, worker or error', value: filter.q, autocomplete: 'off', spellcheck: 'false',
          'data-follows': 'address',
          oninput: (event) => amend(changedTo(at, { q: event.target.value })),
        }), h('kbd', { 'aria-hidden': 'true' }, '/')),
      select('Type', filter.type, [['', 'all types'], ...types.map((type) => [type, type])], (type) => go(changedTo(at, { type }))),
      select('Order', at.params.get('sort') ?? 'updated', SORTS, (sort) => go(changedTo(at, { sort }))),
      filter.tag && h('a', { class: 'chip is-tag', href: changedTo(at, { tag: '' }), 'aria-label': `Remove tag filter ${filter.tag}` }, filter.tag.replace(':', ' '), icon('cancel'))));
}

function select(label, value, options, chosen) {
  return h('label', { class: 'field' }, h('span', { class: 'spoken' }, label),
    h('select', { onchange: (event) => chosen(event.target.value), 'data-value': value },
      options.map(([name, text]) => h('option', { value: name, selected: name === value }, text))));
}

function bulk(found, filter, overview, changed) {
  if (!overview?.allow_actions) return null;
  const fitting = Object.entries(ACTIONS).filter(([, action]) => action.fits.includes(filter.status));
  if (fitting.length === 0) return null;
  return h('div', { class: 'bulk' }, fitting.map(([name, { tone }]) =>
    button(`${name} ${which(found.total)}`, { name, tone, onclick: () => actOnAll(name, found.total, filter, changed) })));
}

function which(total) {
  if (total === 1) return 'this task';
  return total > AT_ONCE ? `${count(AT_ONCE)} of ${count(total)}` : `all ${count(total)}`;
}

async function actOnAll(name, total, filter, changed) {
  const { title: ask, text, tone } = ACTIONS[name];
  const many = counted(Math.min(total, AT_ONCE), 'task');
  if (!await confirm({ title: ask(many), text, yes: `${name} ${many}`, tone })) return;
  try {
    const { done, refused, failed, error } = await api.actOnAll(name, filter);
    const moved = refused > 0 ? `, ${count(refused)} skipped (status had changed)` : '';
    const left = failed > 0 ? `, ${count(failed)} failed: ${error}` : '';
    note(`${name}: ${counted(done, 'task')} changed${moved}${left}`, failed > 0 ? 'failed' : refused > 0 ? 'due' : 'completed');
  } catch (error) {
    note(error.message, 'failed');
  }
  changed();
}

function pages(found, at) {
  const { offset, total, tasks } = found;
  if (total <= PAGE && offset === 0) return null;
  const step = (to, text, name, label) => {
    const isThere = to >= 0 && to < total && to !== offset;
    return h(isThere ? 'a' : 'span', {
      class: 'button', href: isThere ? changedTo(at, { offset: to || undefined }) : null, 'aria-disabled': !isThere && 'true', 'aria-label': label, rel: name,
    }, name === 'prev' && icon('back'), text, name === 'next' && icon('next'));
  };
  return h('nav', { class: 'pages', 'aria-label': 'Pages' },
    step(offset - PAGE, 'Previous', 'prev', 'Previous page'),
    h('span', { class: 'number soft', id: 'page' }, `${count(offset + 1)}–${count(offset + tasks.length)} of ${count(total)}`),
    step(offset + PAGE, 'Next', 'next', 'Next page'));
}
