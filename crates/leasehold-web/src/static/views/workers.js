// Workers view: workers that hold leases or have an inbox, or that report themselves to the broker of a journal, and those named
// in task records.

import * as api from '../api.js';
import { h } from '../dom.js';
import { count, counted, shortId } from '../format.js';
import { empty, heading, loadingText, now, pill, plainTable, time } from '../parts.js';
import { link, taskLink } from '../router.js';

/** Largest number of a worker's running tasks that are listed; the rest is counted. */
const NAMED = 4;

/** Lease of a worker, in the words of `leasehold workers`. */
const LEASES = { shards: 'shards', inbox: 'inbox', seen: '–' };

export const isLive = true;
export const title = () => 'Workers';
export const load = () => api.list('workers');
export const announcement = (before, after) => before.workers.length !== after.workers.length && counted(after.workers.length, 'worker');

export function render({ workers, age_secs: age }, { overview }) {
  const isJournal = overview.layout === 'journal';
  return [
    heading('Workers', h('span', { class: 'soft' }, counted(workers.length, 'worker'))),
    isJournal && overview.broker?.is_reached === false && age !== null && h('p', { class: 'soft' }, 'As the last broker knew them, ', time(new Date(now() - age * 1000).toISOString()), '.'),
    h('section', { class: 'card flush' }, workers.length === 0
      ? age === null && overview.broker?.is_reached !== false ? loadingText() : empty('No workers yet', isJournal ? NONE_REPORTED : NONE_LEASED, `leasehold worker --exec 'greet=./greet.sh'`)
      : plainTable('Workers', isJournal ? REPORTED : LEASED, workers.map(isJournal ? reportedRow : leasedRow), { isStacked: true })),
  ];
}

const NONE_LEASED = 'A worker appears here once it holds shards, has an inbox or has run a task.';
const NONE_REPORTED = 'A worker appears here once it is connected to the broker or has run a task.';

const LEASED = [
  { name: 'worker' }, { name: 'lease' }, { name: 'state' }, { name: 'running' },
  { name: 'completed, 1 h', isNumber: true }, { name: 'failed, 1 h', isNumber: true }, { name: 'inbox', isNumber: true }, { name: 'epoch', isNumber: true }, { name: 'lease expires' }, { name: 'last seen' },
];
const REPORTED = [
  { name: 'worker' }, { name: 'state' }, { name: 'task types' }, { name: 'running' }, { name: 'slots', isNumber: true },
  { name: 'completed, 1 h', isNumber: true }, { name: 'failed, 1 h', isNumber: true }, { name: 'host' }, { name: 'process', isNumber: true }, { name: 'last seen' },
];

const nameOf = (worker) => h('a', { class: 'mono strong', href: link('tasks', { q: worker.worker_id }), 'data-row': true }, worker.worker_id);
const number = (value) => (value === null || value === undefined ? none() : h('span', { class: value === 0 && 'faint' }, count(value)));

/** States of workers that report themselves, in the words of `leasehold workers`. */
const STATES = { alive: 'is connected', stopping: 'claims no more tasks', dead: 'has been silent for longer than its claims last', unknown: 'holds tasks, and has not reported itself to this broker', seen: 'is not connected' };

function reportedRow(worker) {
  const state = worker.state === 'seen' ? 'not connected' : worker.state;
  return {
    key: `${worker.worker_id} ${worker.host ?? ''} ${worker.pid ?? ''}`,
    cells: [
      nameOf(worker),
      h('span', { title: STATES[worker.state] }, pill(worker.state, state)),
      typesOf(worker),
      running(worker.running, worker.held),
      number(worker.slots), number(worker.done_last_hour), number(worker.failed_last_hour),
      worker.host ? h('span', { class: 'mono' }, worker.host) : none(),
      worker.pid ? h('span', { class: 'mono' }, String(worker.pid)) : none(),
      time(worker.last_seen_at),
    ],
  };
}

function typesOf({ kind, state, types }) {
  if (kind === 'seen' || state === 'unknown') return none();
  if (!types) return h('span', { class: 'soft' }, 'all');
  const named = types.slice(0, NAMED).map((type) => h('a', { href: link('tasks', { type }) }, type));
  return h('span', { class: 'list' }, named, types.length > NAMED && h('span', { class: 'soft' }, `and ${count(types.length - NAMED)} more`));
}

function leasedRow(worker) {
  return {
    key: `${worker.kind} ${worker.worker_id}`,
    cells: [
      nameOf(worker),
      h('span', { class: 'soft' }, LEASES[worker.kind] ?? worker.kind),
      pill(worker.state ?? 'seen', (worker.state ?? 'seen') === 'seen' ? 'no lease' : worker.state),
      running(worker.running ?? []),
      number(worker.done_last_hour), number(worker.failed_last_hour), number(worker.in_inbox), number(worker.epoch),
      time(worker.until), time(worker.last_seen_at),
    ],
  };
}

const none = () => h('span', { class: 'faint' }, '–');

/** Links to the running tasks of a worker; `held` is their number, if the table does not have them all. */
function running(ids, held = ids.length) {
  if (ids.length === 0) return held > 0 ? number(held) : none();
  const links = ids.slice(0, NAMED).map((id) => h('a', { class: 'mono', href: taskLink(id), title: id }, shortId(id)));
  return h('span', { class: 'list' }, links, held > links.length && h('span', { class: 'soft' }, `and ${count(held - links.length)} more`));
}
