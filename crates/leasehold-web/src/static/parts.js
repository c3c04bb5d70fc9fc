// Components shared by several views.

import { h, show, svg } from './dom.js';
import { absolute, count, duration, relative, shortId } from './format.js';
import { link, taskLink } from './router.js';

const NOTE_MS = 6_000;

/** Icon paths on a 20 × 20 grid; lines take the colour of the text. */
const ICONS = {
  overview: 'M3 10.5 10 4l7 6.5M5 9v7h10V9',
  tasks: 'M4 5.5h12M4 10h12M4 14.5h7',
  workers: 'M10 9.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM4 16.5c.6-3 3-4.5 6-4.5s5.4 1.5 6 4.5',
  shards: 'M3.5 3.5h5.5v5.5h-5.5zM11 3.5h5.5v5.5h-5.5zM3.5 11h5.5v5.5h-5.5zM11 11h5.5v5.5h-5.5z',
  artifacts: 'M10 3 16.5 6.5v7L10 17l-6.5-3.5v-7zM3.5 6.5 10 10l6.5-3.5M10 10v7',
  outposts: 'M4 17V4.5l9 1.5-2 3 2 3-9 1.5',
  settings: 'M4 6h7M15 6h1M4 14h1M9 14h7M13 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM7 16a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z',
  search: 'M9 14.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11ZM13 13l4 4',
  copy: 'M7.5 7.5h8v8h-8zM12.5 4.5h-8v8',
  back: 'M12 4.5 6.5 10 12 15.5',
  next: 'M8 4.5 13.5 10 8 15.5',
  retry: 'M16 10a6 6 0 1 1-1.8-4.3M16 3.5v3.5h-3.5',
  cancel: 'M5.5 5.5l9 9M14.5 5.5l-9 9',
  run_now: 'M6.5 4.5v11l9-5.5z',
  theme: 'M10 3.5a6.5 6.5 0 1 0 0 13zM10 3.5a6.5 6.5 0 0 1 0 13',
  help: 'M7.5 7.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M10 14.6v.1',
};

export function icon(name) {
  return svg('svg', { class: 'icon', viewBox: '0 0 20 20', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }));
}

// ---- times ----

/** Store's clock minus the browser's, so that ages are right where the two differ. */
let offset = 0;

export function setClock(now) {
  offset = new Date(now) - Date.now();
}

export const now = () => new Date(Date.now() + offset);

/** Time as "12 s ago", with the absolute time as tooltip. */
export function time(at) {
  if (!at) return h('span', { class: 'faint' }, '–');
  const moment = new Date(at);
  if (Number.isNaN(moment.valueOf())) return h('span', {}, at);
  return h('time', { datetime: at, title: absolute(moment) }, relative(moment, now()));
}

/** Running duration, "1 min 14 s"; `tick` updates it. */
export function lasting(secs) {
  const since = new Date(now() - secs * 1000);
  return h('time', { datetime: since.toISOString(), title: `since ${absolute(since)}`, 'data-form': 'lasting' }, duration(secs));
}

export const lastingSince = (at) => lasting(Math.max(0, Math.floor((now() - new Date(at)) / 1000)));

/** Updates all times on the page. */
export function tick() {
  for (const element of document.querySelectorAll('time[datetime]')) {
    const since = new Date(element.dateTime);
    const isLasting = element.dataset.form === 'lasting';
    const text = isLasting ? duration(Math.max(0, Math.floor((now() - since) / 1000))) : relative(since, now());
    if (element.textContent !== text) element.textContent = text;
  }
}

// ---- tasks ----

/** Status shown for a task: pending is split into due and scheduled. */
export function statusOf(row) {
  if (row.status !== 'pending') return row.status;
  const isDue = row.is_due ?? new Date(row.available_at) <= now();
  return isDue ? 'due' : 'scheduled';
}

export const pill = (word, text = word) => h('span', { class: `pill tone-${word}` }, text);

export const tag = (key, value) =>
  h('a', { class: 'tag', href: link('tasks', { tag: `${key}:${value}` }), title: 'Show all tasks with this tag' },
    h('span', { class: 'soft' }, key), ' ', value);

/** Table of tasks; cards on a phone. `untaken`: the types whose due tasks no worker claims. A journal has no shards. */
export function taskTable(rows, { label, untaken = [], hasShards }) {
  const since = new Map(untaken.map((one) => [one.task_type, one.since]));
  const columns = ['Task', 'Status', 'Attempt', 'Shard', 'Updated', 'Details'];
  return h('div', { class: 'table-frame' },
    h('table', { class: `rows tasks${hasShards ? '' : ' no-shards'}`, 'aria-label': label },
      h('thead', {}, h('tr', {}, columns.map((name) => h('th', { scope: 'col' }, name)))),
      h('tbody', {}, rows.map((row) => taskRow(row, since.get(row.task_type))))));
}

function taskRow(row, untakenSince) {
  const word = statusOf(row);
  return h('tr', { key: row.id, 'data-id': row.id, class: `tone-${word}` },
    h('td', { class: 'task' },
      h('a', { href: taskLink(row.id), 'data-row': true, title: row.id },
        h('span', { class: 'type' }, row.task_type), ' ', h('span', { class: 'mono soft' }, shortId(row.id)))),
    h('td', {}, pill(word)),
    h('td', { class: 'number', 'data-label': 'attempt' }, `${row.attempt} of ${row.max_attempts}`),
    h('td', { class: 'mono soft', 'data-label': 'shard' }, row.shard),
    h('td', { class: 'number when' }, time(row.updated_at)),
    h('td', { class: 'known' }, rowDetails(row, word, untakenSince)));
}

/** Most informative line of an error: the last one of a traceback, otherwise the first one. */
export function gist(error) {
  const lines = error.split('\n').filter((line) => line.trim());
  return (lines[0]?.startsWith('Traceback') ? lines.at(-1) : lines[0]) ?? error;
}

/** Most useful detail of a task in this state. */
function rowDetails(row, word, untakenSince) {
  const tags = Object.entries(row.tags ?? {}).map(([key, value]) => tag(key, value));
  const fact = {
    scheduled: () => h('span', { class: 'soft' }, row.error ? 'next attempt ' : 'due ', time(row.available_at)),
    due: () => h('span', { class: 'soft' }, 'due ', time(row.available_at),
      untakenSince && [' · ', h('b', { class: 'warning' }, 'no worker has claimed this type for ', lastingSince(untakenSince))]),
    running: () => row.worker && h('span', { class: 'soft' }, 'held by ', h('span', { class: 'mono' }, row.worker)),
    completed: () => row.worker && h('span', { class: 'soft' }, 'by ', h('span', { class: 'mono' }, row.worker)),
  }[word]?.();
  const error = row.error && word !== 'completed' && h('span', { class: 'error-line', title: row.error }, gist(row.error));
  return [fact, error, tags.length > 0 && h('span', { class: 'tags' }, tags)];
}

// ---- layout ----

/** Heading of a page, with optional content beside it. */
export function heading(title, aside, ...below) {
  return h('header', { class: 'heading' },
    h('h1', {}, title), aside && h('div', { class: 'aside' }, aside), below);
}

export function card(title, { aside, id } = {}, ...children) {
  return h('section', { class: `card card-${id}`, 'aria-labelledby': id },
    h('div', { class: 'card-head' }, h('h2', { id }, title), aside && h('div', { class: 'aside' }, aside)),
    children);
}

/** Empty state: title, explanation and a command to run. */
export function empty(title, text, command) {
  return h('div', { class: 'empty' },
    h('p', { class: 'empty-title' }, title), text && h('p', { class: 'soft' }, text),
    command && h('p', { class: 'command' }, h('code', {}, command), copyButton(command, 'Copy command')));
}

/** Placeholder while data is loading. */
export const loadingText = () => h('p', { class: 'empty soft' }, 'Loading…');

export function facts(pairs) {
  return h('dl', { class: 'facts' }, pairs.filter(Boolean).map(([name, ...value]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

/** Table of plain cells; numbers are right-aligned. A stacked one shows each row as a card on a phone. */
export function plainTable(label, columns, rows, { isStacked } = {}) {
  return h('div', { class: 'table-frame' },
    h('table', { class: `rows${isStacked ? ' stacked' : ''}`, 'aria-label': label },
      h('thead', {}, h('tr', {}, columns.map(({ name, isNumber }) => h('th', { scope: 'col', class: isNumber && 'number' }, name)))),
      h('tbody', {}, rows.map(({ key, cells, tone }) => h('tr', { key, class: tone && `tone-${tone}` },
        cells.map((cell, index) => h('td', { class: columns[index].isNumber && 'number', 'data-label': columns[index].name },
          typeof cell === 'number' ? count(cell) : cell)))))));
}

export function button(text, { onclick, name, tone, disabled, title } = {}) {
  return h('button', { type: 'button', class: `button${tone ? ` tone-${tone}` : ''}`, onclick, disabled, title }, name && icon(name), text);
}

export function copyButton(text, label = 'Copy') {
  const onclick = async () => note(await copied(text) ? 'Copied' : 'The browser blocked copying');
  return h('button', { type: 'button', class: 'copy', 'aria-label': label, title: label, onclick }, icon('copy'));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

// ---- notes and dialogs ----

/** Shows a note in a corner for a few seconds. */
export function note(text, tone = 'plain') {
  const element = h('p', { class: `note tone-${tone}` }, text);
  document.getElementById('notes').append(element);
  setTimeout(() => element.remove(), NOTE_MS);
}

/** Announces a text to screen readers. */
export function speak(text) {
  document.getElementById('spoken').textContent = text;
}

/** Asks for confirmation; resolves to true if the user confirms. */
export function confirm({ title, text, yes, tone }) {
  return new Promise((resolve) => {
    const dialog = h('dialog', { class: 'dialog', 'aria-labelledby': 'question' },
      h('h2', { id: 'question' }, title), h('p', { class: 'soft' }, text),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'button', onclick: () => dialog.close() }, 'Go back'),
        h('button', { type: 'button', class: `button main tone-${tone}`, onclick: () => dialog.close('yes') }, yes)));
    openDialog(dialog, () => resolve(dialog.returnValue === 'yes'));
    dialog.querySelector('.main').focus();
  });
}

export function openDialog(dialog, closed = () => {}) {
  document.body.append(dialog);
  dialog.addEventListener('close', () => { dialog.remove(); closed(); }, { once: true });
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
}

/** Shows a banner above the view, or hides it if there is no text. */
export function banner(text, tone = 'failed') {
  show(document.getElementById('banner'), text && h('p', { class: `banner tone-${tone}` }, text));
}
