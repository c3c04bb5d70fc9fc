// Task view: status, timeline, input, output, and the actions that its state allows.

import * as api from '../api.js';
import { h } from '../dom.js';
import { duration, shortId } from '../format.js';
import { button, card, confirm, copyButton, facts, icon, lastingSince, note, now, pill, statusOf, tag, time } from '../parts.js';
import { timeline } from '../timeline.js';

/** Interval at which a task that is not final is read again: each read is a request to the store. */
const READ_EVERY_MS = 4_000;

const ACTIONS = {
  retry: { text: 'Retry', tone: 'running', title: 'Retry this task?', why: 'The task becomes pending again and its attempts are reset.', done: () => 'Task is pending again' },
  run_now: { text: 'Run now', tone: 'running', title: 'Run this task now?', why: 'The task becomes due immediately.', done: () => 'Task is due now' },
  cancel: {
    text: 'Cancel', tone: 'failed', title: 'Cancel this task?', why: 'If the task is running, its worker stops it at the next renewal of its claim.',
    done: (row) => (row?.status === 'running' ? 'Cancel requested' : 'Task is cancelled'),
  },
};

export const isLive = true;
export const title = ({ task }) => `${task.task_type} ${shortId(task.id)}`;

export async function load({ at }, before) {
  const id = at.rest[0];
  if (before && before.task.id === id && !await isStale(before)) return before;
  return { ...await api.task(id), readAt: Date.now() };
}

/** True if a task must be read again: final tasks only after the server has read a change, others periodically. */
async function isStale({ task, readAt }) {
  if (!task.finished_at && Date.now() - readAt >= READ_EVERY_MS) return true;
  const { tasks: [row] } = await api.tasks(new URLSearchParams({ q: task.id, limit: 1 }));
  return row !== undefined && row.updated_at > task.updated_at;
}

export const announcement = (before, after) => before.task.status !== after.task.status && `Task is now ${after.task.status}`;

export function render(data, { overview, list, changed }) {
  const { task } = data;
  return [
    h('header', { class: 'heading task-heading' },
      h('a', { class: 'back', href: list, 'aria-label': 'Back to list' }, icon('back'), 'Tasks'),
      h('h1', {}, h('span', { class: 'type' }, task.task_type), ' ', pill(statusOf(task))),
      h('p', { class: 'id' }, h('span', { class: 'mono soft' }, task.id), copyButton(task.id, 'Copy id')),
      h('div', { class: 'aside' }, actions(data, overview, changed))),
    task.cancel_requested && h('p', { class: 'banner tone-due' }, 'Cancel requested: the worker stops the task at the next renewal of its claim.'),
    untakenBanner(task, overview),
    task.error && card(task.status === 'failed' ? 'Error' : 'Last error', { id: 'error', aside: copyButton(task.error, 'Copy error') }, text(task.error, 'trace')),
    card('Timeline', { id: 'life' }, timeline(data, now())),
    h('div', { class: 'grid halves' },
      card('Input', { id: 'input', aside: copyButton(pretty(task.input), 'Copy input') }, json(task.input)),
      task.status === 'completed'
        ? card('Output', { id: 'output', aside: copyButton(pretty(task.output), 'Copy output') }, json(task.output))
        : task.progress !== undefined && card('Progress', { id: 'progress' }, progress(task.progress))),
    files(task),
    card('Details', { id: 'facts' }, facts(factsOf(task, overview))),
    h('details', { class: 'card record' }, h('summary', {}, 'Full record'), json(task)),
  ];
}

function actions({ task, can }, overview, changed) {
  if (!overview?.allow_actions) return h('span', { class: 'faint', title: 'Start the dashboard with --allow-actions to change tasks' }, 'read-only');
  return can.filter((name) => ACTIONS[name]).map((name) =>
    button(ACTIONS[name].text, { name, tone: ACTIONS[name].tone, onclick: () => act(task, name, changed) }));
}

async function act(task, name, changed) {
  const { title: ask, why, text: yes, tone, done } = ACTIONS[name];
  if (!await confirm({ title: ask, text: why, yes, tone })) return;
  try {
    const { task: row } = await api.act(task.id, name);
    note(done(row), 'completed');
  } catch (error) {
    note(error.message, 'failed');
  }
  changed();
}

/** Banner on a due task whose type no worker claims. */
function untakenBanner(task, overview) {
  const untaken = statusOf(task) === 'due' && overview?.untaken.find((one) => one.task_type === task.task_type);
  return untaken && h('p', { class: 'banner tone-due' },
    'No worker has claimed a task of this type for ', lastingSince(untaken.since), `. Start a worker with a handler for ${task.task_type}.`);
}

function factsOf(task, overview) {
  const tags = Object.entries(task.tags ?? {});
  const claim = task.status === 'running';
  return [
    ['attempt', `${task.attempt} of ${task.max_attempts}`],
    // The journal has no shards.
    overview?.layout !== 'journal' && ['shard', h('span', { class: 'mono' }, task.shard)],
    ['created', time(task.created_at)],
    ['updated', time(task.updated_at)],
    task.available_at && ['due', time(task.available_at)],
    task.finished_at && ['finished', time(task.finished_at)],
    claim && ['held by', h('span', { class: 'mono' }, task.claimed_by)],
    claim && ['claim expires', time(task.lease_expires_at)],
    ['epoch', String(task.epoch)],
    task.generation > 0 && ['manual retries', String(task.generation)],
    ['priority', String(task.priority)],
    task.timeout_secs && ['timeout', duration(task.timeout_secs)],
    task.expires_at && ['expires', time(task.expires_at)],
    task.idempotency_key && ['idempotency key', h('span', { class: 'mono break' }, task.idempotency_key)],
    tags.length > 0 && ['tags', h('span', { class: 'tags' }, tags.map(([key, value]) => tag(key, value)))],
  ];
}

function files(task) {
  const all = [...Object.entries(task.artifacts ?? {}), ...Object.entries(task.results ?? {})];
  if (all.length === 0) return null;
  const made = new Set(Object.keys(task.results ?? {}));
  return card('Artifacts', { id: 'files' }, facts(all.map(([name, artifact]) =>
    [made.has(name) ? `${name} (result)` : name, h('span', { class: 'mono break' }, artifact), copyButton(artifact, 'Copy hash')])));
}

// ---- progress ----

/** Progress bar if the handler reports a `percent`, with its other fields below; text is shown as is. */
function progress(value) {
  if (typeof value === 'string') return h('p', {}, value);
  if (typeof value?.percent !== 'number') return json(value);
  const { percent, ...rest } = value;
  const shown = Math.min(100, Math.max(0, percent));
  return h('div', { class: 'progress' },
    h('progress', { max: '100', value: String(shown), 'aria-label': 'Progress' }), h('span', { class: 'number' }, `${Math.round(shown)} %`),
    Object.keys(rest).length > 0 && json(rest));
}

// ---- text ----

const pretty = (value) => JSON.stringify(value, null, 2) ?? '';

/** Preformatted text; long lines wrap, and the block scrolls, also with the keyboard. */
const text = (parts, kind) => h('pre', { class: `text ${kind}`, tabindex: '0' }, parts);

const PIECE = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\b(?:true|false|null)\b/g;
/** Largest text with syntax colours; a longer one is shown plain. */
const COLOURED_CHARS = 20_000;

function json(value) {
  const content = pretty(value);
  if (content.length > COLOURED_CHARS) return text(content, 'json');
  const parts = [];
  let end = 0;
  for (const found of content.matchAll(PIECE)) {
    const [whole, string, colon] = found;
    parts.push(content.slice(end, found.index));
    if (colon) parts.push(h('span', { class: 'json-key' }, string), colon);
    else parts.push(h('span', { class: string ? 'json-string' : 'json-other' }, whole));
    end = found.index + whole.length;
  }
  parts.push(content.slice(end));
  return text(parts, 'json');
}
