// Overview: waiting and running tasks, failures and cost.

import { chart, roundDuration } from '../charts.js';
import { h } from '../dom.js';
import { brief, bytes, clock, count, counted, duration, shortId, usd } from '../format.js';
import { card, empty, facts, gist, heading, lasting, lastingSince, loadingText, now, pill, plainTable, time } from '../parts.js';
import { link, taskLink } from '../router.js';

const MINUTE_MS = 60_000;
/** Time span below which labels include seconds. */
const SHORT_MS = 10 * MINUTE_MS;
/** Largest number of points in the depth chart: a phone has no pixels for more. */
const DEPTH_MOMENTS = 180;
/** Largest number of task types named in a sentence. */
const NAMED_MAX = 2;
/** Age up to which data counts as live. */
const FRESH_SECS = 15;

export const title = () => 'Overview';

export const load = async ({ overview }) => overview;

export function announcement(before, after) {
  const failed = after.counts.failed - before.counts.failed;
  return failed > 0 && `${counted(failed, 'more task')} failed`;
}

export function render(data) {
  const all = Object.entries(data.counts).filter(([name]) => !['due', 'scheduled'].includes(name)).reduce((sum, [, each]) => sum + each, 0);
  return [
    heading('Overview', dataAge(data.sample), h('p', { class: 'health' }, isRead(data) ? health(data) : 'Loading tasks.')),
    tiles(data),
    broker(data),
    all === 0 && !isRead(data) ? h('section', { class: 'card' }, loadingText()) : all === 0
      ? h('section', { class: 'card' }, empty('The queue is empty', 'Submitted tasks appear here automatically.', `leasehold submit -t greet -i '{"name": "Ada"}'`))
      : h('div', { class: 'grid' }, throughput(data), depth(data), waits(data), cost(data), types(data), failures(data)),
  ];
}

/** True once tasks have been read: until then, a count of zero means nothing. */
const isRead = ({ sample }) => sample.tasks_age_secs !== null || sample.rows > 0;

/** Age of the data shown. */
function dataAge({ tasks_age_secs: age }) {
  if (age === null) return h('span', { class: 'fresh' }, 'loading');
  const read = new Date(now() - age * 1000);
  return h('span', { class: `fresh${age < FRESH_SECS ? ' is-live' : ''}` }, h('span', {}, 'updated ', time(read.toISOString())));
}

/** One sentence about the state of the queue. */
function health(data) {
  const { counts } = data;
  const failed = data.charts.failed.reduce((sum, each) => sum + each, 0);
  const done = data.charts.completed.reduce((sum, each) => sum + each, 0);
  const wait = counts.due === 0 ? 'No tasks are due' : `${counted(counts.due, 'task is', 'tasks are')} due, the oldest for `;
  const lately = done + failed === 0 ? 'none finished in the last hour' : `${count(done)} completed and ${count(failed)} failed in the last hour`;
  return [wait, counts.due > 0 && lasting(data.oldest_due_secs ?? 0), `; ${lately}.`, data.untaken.length > 0 && [' ', warning(data.untaken)]];
}

/** Warning about due tasks that no worker claims: their types, and the shortest time that this has lasted. */
function warning(untaken) {
  const names = untaken.slice(0, NAMED_MAX).map((one) => one.task_type);
  const more = untaken.length - names.length;
  const list = more > 0 ? `${names.join(', ')} and ${count(more)} more` : names.join(' and ');
  const since = untaken.map((one) => one.since).sort().at(-1);
  return h('b', { class: 'warning' }, `No worker has claimed tasks of ${untaken.length > 1 ? `types ${list} for at least ` : `type ${list} for `}`, lastingSince(since), '.');
}

function tiles(data) {
  const { counts, index } = data;
  const oldest = data.oldest_due_secs === null ? '–' : lasting(data.oldest_due_secs);
  // The index is read first; it has the waiting and running tasks, but not the finished ones.
  const known = (word) => (isRead(data) ? count(counts[word]) : index?.[word] === undefined ? '–' : count(index[word]));
  const tile = (word, value, text, params) => h('a', { key: word, class: `tile tone-${word}`, href: link('tasks', params), 'data-count': word },
    h('span', { class: 'tile-name' }, text), h('span', { class: 'tile-value number' }, value));
  return h('nav', { class: 'tiles card', 'aria-label': 'Tasks by status' },
    tile('due', known('due'), 'due', { status: 'due' }),
    tile('oldest', oldest, 'oldest due', { status: 'due', sort: 'waiting' }),
    ['running', 'scheduled', 'completed', 'failed', 'cancelled', 'expired'].map((word) => tile(word, known(word), word, { status: word })));
}

// ---- broker ----

/** The process that decides for a journal, and how long its commits take. */
function broker({ layout, broker: seen }) {
  if (layout !== 'journal') return null;
  if (!seen) return card('Broker', { id: 'broker' }, loadingText());
  if (!seen.is_reached) return card('Broker', { id: 'broker', aside: pill('failed', 'not reached') }, h('p', {}, absence(seen)));
  const ms = (us) => (us === null ? '–' : `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`);
  return card('Broker', { id: 'broker', aside: pill('completed', 'serving') }, facts([
    ['process', h('span', { class: 'mono' }, `${seen.pid}`), ' on ', h('span', { class: 'mono' }, seen.host)],
    ['serving for', lastingSince(seen.since)],
    ['epoch', h('span', { class: 'number', title: 'Number of the lease; each takeover adds one' }, count(seen.epoch))],
    ['commits per second', h('span', { class: 'number', title: `${count(seen.commits)} commits, ${seen.records_per_commit.toFixed(1)} changes per commit` }, brief(Math.round(seen.commits_per_second * 10) / 10))],
    ['commit, p50', h('span', { class: 'number', title: 'in the last minute' }, ms(seen.p50_us))],
    ['commit, p99', h('span', { class: 'number', title: 'in the last minute' }, ms(seen.p99_us))],
    ['waiting claims', h('span', { class: 'number', title: 'Requests of workers that wait for a task' }, count(seen.waiting_claims))],
    ['clients', h('span', { class: 'number', title: 'Connections of other processes' }, count(seen.clients))],
    ['tasks in memory', h('span', { class: 'number', title: `${count(seen.archived_tasks)} more in the archive` }, count(seen.live_tasks))],
    ['memory', h('span', { class: 'number', title: `of which tasks ${bytes(seen.body_bytes)}` }, seen.resident_bytes === null ? '–' : bytes(seen.resident_bytes))],
  ]));
}

/** Who was the last broker, and what to do. */
function absence({ last, absent_secs: secs }) {
  const since = ['No broker has been reached for ', lasting(secs), '. '];
  if (!last) return [...since, 'This queue has never had one; start a worker, `leasehold up` or `leasehold broker`.'];
  const process = `process ${last.pid} on host ${last.host}`;
  if (last.state === 'held') return [...since, `The lease is held by ${process}, which cannot be reached from here; it expires `, time(last.expires_at), ' unless it is renewed.'];
  const end = last.state === 'released' ? 'released its lease ' : 'has a lease that expired ';
  return [...since, `The last one, ${process}, ${end}`, time(last.state === 'released' ? last.renewed_at : last.expires_at), '; start a worker, `leasehold up` or `leasehold broker`.'];
}

// ---- charts ----

function minutes(data) {
  const start = new Date(data.charts.start);
  const size = data.charts.completed.length;
  const at = (index) => clock(new Date(start.valueOf() + index * MINUTE_MS));
  return { moment: at, ends: [at(0), at(Math.round(size / 2)), 'now'] };
}

const sum = (values) => values.reduce((total, each) => total + (each ?? 0), 0);

function throughput(data) {
  const { completed, failed } = data.charts;
  const done = sum(completed);
  const bad = sum(failed);
  return card('Finished per minute', { id: 'throughput' }, chart({
    name: 'Finished per minute', kind: 'bars', resting: 'last hour', format: brief, ...minutes(data),
    summary: `In the last hour ${done} completed and ${bad} failed.`,
    series: [
      { name: 'completed', tone: 'completed', values: completed, resting: done },
      { name: 'failed', tone: 'failed', values: failed, resting: bad },
    ],
  }));
}

function depth(data) {
  const samples = reduced(data.charts.depth ?? [], DEPTH_MOMENTS);
  if (samples.length === 0) return null;
  const last = samples.at(-1);
  const hasSeconds = new Date(last.at) - new Date(samples[0].at) < SHORT_MS;
  const at = (index) => clock(new Date(samples[index].at), { hasSeconds });
  return card('Queue depth', { id: 'depth' }, chart({
    name: 'Queue depth', kind: 'areas', resting: 'now', format: brief,
    moment: at, ends: [at(0), samples.length > 2 ? at(Math.floor(samples.length / 2)) : '', 'now'],
    summary: `Now ${last.due} due, ${last.running} running, ${last.scheduled} scheduled.`,
    series: ['running', 'due', 'scheduled'].map((name) => ({ name, tone: name, values: samples.map((one) => one[name]), resting: last[name] })),
  }));
}

function reduced(samples, most) {
  const step = Math.ceil(samples.length / most);
  return samples.filter((_, index) => (samples.length - 1 - index) % step === 0);
}

function waits(data) {
  const waiting = data.charts.waiting_secs_p50;
  const run = data.charts.run_secs_p50;
  const latest = (values) => values.findLast((value) => value !== null && value !== undefined);
  return card('Median duration', { id: 'waits' }, chart({
    name: 'Median duration', kind: 'lines', resting: 'latest', format: duration, round: roundDuration, ...minutes(data),
    summary: `Waiting ${duration(latest(waiting))}, running ${duration(latest(run))}.`,
    series: [
      { name: 'waiting', tone: 'due', values: waiting, resting: latest(waiting) },
      { name: 'running', tone: 'running', values: run, resting: latest(run) },
    ],
  }));
}

// ---- cost ----

function cost(data) {
  const { tasks, process } = data.cost;
  const { sample, is_billed: isBilled } = data;
  const purposes = process.by_purpose.filter((one) => one.put + one.get + one.list + one.delete > 0);
  // A folder has no request prices: only the number of requests is shown.
  const amount = (dollars) => (isBilled ? `, ${usd(dollars)}` : '');
  return card(isBilled ? 'Cost' : 'Requests', { id: 'cost', aside: isBilled && h('span', { class: 'faint' }, `list prices of ${data.provider}`) },
    // Changes of a journal share commits: no cost of a single task is known.
    isBilled && tasks && h('div', { class: 'price' },
      h('span', { class: 'price-value number' }, tasks.tasks > 0 ? usd(tasks.usd_per_million) : '–'),
      h('span', { class: 'soft' }, 'per million tasks')),
    tasks && h('p', { class: 'soft' }, tasks.tasks > 0
      ? `${counted(tasks.tasks, 'task')} took ${counted(tasks.requests, 'request')}${amount(tasks.usd)}. Polling for work is not included.`
      : 'No tasks submitted yet.'),
    data.broker?.is_reached && h('p', { class: 'soft' }, 'The broker answers this page from memory: viewers and samples cost no request to the store.'),
    h('p', { class: 'soft own-cost' }, 'This dashboard: ', h('b', {}, counted(sample.requests, 'request')), `${amount(sample.usd)}${sample.requests_per_hour ? `, about ${count(sample.requests_per_hour)} per hour` : ''}.`),
    purposes.length > 0 && h('details', {},
      h('summary', {}, `This process: ${counted(process.requests, 'request')}${amount(process.usd)}`),
      plainTable('Requests of this process by purpose',
        [{ name: 'purpose' }, ...['put', 'get', 'list', 'delete'].map((name) => ({ name, isNumber: true })), ...(isBilled ? [{ name: 'US$', isNumber: true }] : [])],
        purposes.map((one) => ({
          key: one.purpose,
          cells: [one.purpose, one.put, one.get, one.list, one.delete, ...(isBilled ? [usd(one.usd).replace('US$', '')] : [])],
        })))));
}

// ---- tables ----

function types(data) {
  const untaken = new Set(data.untaken.map((one) => one.task_type));
  const number = (value, type, status) => (value === 0 ? h('span', { class: 'faint' }, '0') : h('a', { href: link('tasks', { type, status }) }, count(value)));
  return card('Task types', { id: 'types' }, plainTable('Task types',
    [{ name: 'type' }, ...['pending', 'running', 'completed', 'failed', 'other'].map((name) => ({ name, isNumber: true }))],
    data.types.map((one) => ({
      key: one.task_type,
      cells: [
        [h('a', { class: 'type', href: link('tasks', { type: one.task_type }) }, one.task_type),
          untaken.has(one.task_type) && [' ', h('span', { class: 'pill tone-failed', title: 'No worker has claimed a due task of this type for at least two minutes' }, 'no worker')]],
        ...['pending', 'running', 'completed', 'failed'].map((status) => number(one[status], one.task_type, status)),
        one.other === 0 ? h('span', { class: 'faint' }, '0') : one.other,
      ],
    }))));
}

/** One line for each error and task type: the newest task, and the number of tasks. */
function failures(data) {
  const rows = data.recent_failures;
  return card('Recent failures', { id: 'failures', aside: rows.length > 0 && h('a', { href: link('tasks', { status: 'failed' }) }, 'all') },
    rows.length === 0
      ? h('p', { class: 'soft calm' }, 'No failures.')
      : h('ul', { class: 'failures' }, rows.map((row) => h('li', { key: row.id },
        h('a', { class: 'failure', href: row.count > 1 ? sameErrorLink(row) : taskLink(row.id), 'data-row': true },
          h('span', { class: 'failure-head' }, h('span', { class: 'type' }, row.task_type), ' ',
            row.count > 1
              ? h('span', { class: 'badge number', title: 'tasks of this type that failed with this error' }, `× ${count(row.count)}`)
              : h('span', { class: 'mono soft' }, shortId(row.id)),
            time(row.finished_at ?? row.updated_at)),
          h('span', { class: 'error-line' }, row.error ? gist(row.error) : 'no error message'))))));
}

/** Link to all tasks of a type that failed with this error. */
const sameErrorLink = (row) => link('tasks', { status: 'failed', type: row.task_type, q: row.error && gist(row.error) });
