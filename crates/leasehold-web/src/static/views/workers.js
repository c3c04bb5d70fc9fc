// Workers view: workers that hold leases or have an inbox, and those named in task records.

import * as api from '../api.js';
import { h } from '../dom.js';
import { count, counted, shortId } from '../format.js';
import { empty, heading, loadingText, pill, plainTable, time } from '../parts.js';
import { link, taskLink } from '../router.js';

/** Largest number of a worker's running tasks that are listed; the rest is counted. */
const NAMED = 4;

/** Lease of a worker, in the words of `leasehold workers`. */
const LEASES = { shards: 'shards', inbox: 'inbox', seen: '–' };

export const isLive = true;
export const title = () => 'Workers';
export const load = () => api.list('workers');
export const announcement = (before, after) => before.workers.length !== after.workers.length && counted(after.workers.length, 'worker');

export function render({ workers, age_secs: age }) {
  return [
    heading('Workers', h('span', { class: 'soft' }, counted(workers.length, 'worker'))),
    h('section', { class: 'card flush' }, workers.length === 0
      ? age === null ? loadingText() : empty('No workers yet', 'A worker appears here once it holds shards, has an inbox or has run a task.', `leasehold worker --exec 'greet=./greet.sh'`)
      : plainTable('Workers', [
        { name: 'worker' }, { name: 'lease' }, { name: 'state' }, { name: 'running' },
        { name: 'completed, 1 h', isNumber: true }, { name: 'failed, 1 h', isNumber: true }, { name: 'inbox', isNumber: true }, { name: 'epoch', isNumber: true }, { name: 'lease expires' }, { name: 'last seen' },
      ], workers.map(row), { isStacked: true })),
  ];
}

function row(worker) {
  const number = (value) => (value === null || value === undefined ? none() : h('span', { class: value === 0 && 'faint' }, count(value)));
  return {
    key: `${worker.kind} ${worker.worker_id}`,
    cells: [
      h('a', { class: 'mono strong', href: link('tasks', { q: worker.worker_id }), 'data-row': true }, worker.worker_id),
      h('span', { class: 'soft' }, LEASES[worker.kind] ?? worker.kind),
      pill(worker.state ?? 'seen', (worker.state ?? 'seen') === 'seen' ? 'no lease' : worker.state),
      running(worker.running ?? []),
      number(worker.done_last_hour), number(worker.failed_last_hour), number(worker.in_inbox), number(worker.epoch),
      time(worker.until), time(worker.last_seen_at),
    ],
  };
}

const none = () => h('span', { class: 'faint' }, '–');

function running(ids) {
  if (ids.length === 0) return none();
  const links = ids.slice(0, NAMED).map((id) => h('a', { class: 'mono', href: taskLink(id), title: id }, shortId(id)));
  return h('span', { class: 'list' }, links, ids.length > NAMED && h('span', { class: 'soft' }, `and ${count(ids.length - NAMED)} more`));
}
