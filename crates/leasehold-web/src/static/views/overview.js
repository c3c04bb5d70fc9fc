// The queue at a glance: what waits, what runs, what went wrong, what it costs.

import { chart } from '../charts.js';
import { h } from '../dom.js';
import { brief, clock, count, counted, duration, shortId, usd } from '../format.js';
import { card, empty, gist, heading, lasting, now, plainTable, reading, time } from '../parts.js';
import { link, taskLink } from '../router.js';

const MINUTE_MS = 60_000;
/** Moments of less than this differ in their seconds. */
const SHORT_MS = 10 * MINUTE_MS;
/** So many moments of the depth are drawn: more than there are pixels on a phone would be lost. */
const DEPTH_MOMENTS = 180;
/** A task that is due for longer than this has nobody to run it. */
const OVERDUE_SECS = 120;
/** Figures that are not older than this count as live. */
const FRESH_SECS = 15;

export const title = () => 'Overview';

export const load = async ({ overview }) => overview;

export function news(before, after) {
  const failed = after.counts.failed - before.counts.failed;
  return failed > 0 && `${counted(failed, 'task')} more failed`;
}

export function render(seen) {
  const all = Object.entries(seen.counts).filter(([name]) => !['due', 'scheduled'].includes(name)).reduce((sum, [, each]) => sum + each, 0);
  return [
    heading('Overview', fresh(seen.sample), h('p', { class: 'health' }, isRead(seen) ? health(seen) : 'Reading the tasks.')),
    tiles(seen),
    all === 0 && !isRead(seen) ? h('section', { class: 'card' }, reading()) : all === 0
      ? h('section', { class: 'card' }, empty('The queue is empty', 'What you submit appears here by itself.', `leasehold submit -t greet -i '{"name": "Ada"}'`))
      : h('div', { class: 'grid' }, throughput(seen), depth(seen), waits(seen), cost(seen), types(seen), failures(seen)),
  ];
}

/** Whether the tasks were read at all: before that, zero says nothing. */
const isRead = ({ sample }) => sample.tasks_age_secs !== null || sample.rows > 0;

/** How old what one sees is. */
function fresh({ tasks_age_secs: age }) {
  if (age === null) return h('span', { class: 'fresh' }, 'reading');
  const read = new Date(now() - age * 1000);
  return h('span', { class: `fresh${age < FRESH_SECS ? ' is-live' : ''}` }, 'read ', time(read.toISOString()));
}

/** One sentence: is all well? */
function health(seen) {
  const { counts } = seen;
  const failed = seen.charts.failed.reduce((sum, each) => sum + each, 0);
  const done = seen.charts.completed.reduce((sum, each) => sum + each, 0);
  const wait = counts.due === 0 ? 'Nothing is waiting' : `${counted(counts.due, 'task is', 'tasks are')} due, the oldest for `;
  const lately = done + failed === 0 ? 'nothing ended in the last hour' : `${count(done)} completed and ${count(failed)} failed in the last hour`;
  const isStuck = counts.running === 0 && (seen.oldest_due_secs ?? 0) > OVERDUE_SECS;
  return [wait, counts.due > 0 && lasting(seen.oldest_due_secs ?? 0), `; ${lately}.`, isStuck && h('b', { class: 'tone-failed' }, ' No worker seems to take tasks.')];
}

function tiles(seen) {
  const { counts, index } = seen;
  const oldest = seen.oldest_due_secs === null ? '–' : lasting(seen.oldest_due_secs);
  // The index is there first; it knows what waits and runs, and nothing of what has ended.
  const known = (word) => (isRead(seen) ? count(counts[word]) : index?.[word] === undefined ? '–' : count(index[word]));
  const tile = (word, value, text, params) => h('a', { key: word, class: `tile tone-${word}`, href: link('tasks', params), 'data-count': word },
    h('span', { class: 'tile-name' }, text), h('span', { class: 'tile-value number' }, value));
  return h('nav', { class: 'tiles card', 'aria-label': 'Tasks by status' },
    tile('due', known('due'), 'due', { status: 'due' }),
    tile('oldest', oldest, 'oldest due', { status: 'due', sort: 'waiting' }),
    ['running', 'scheduled', 'completed', 'failed', 'cancelled', 'expired'].map((word) => tile(word, known(word), word, { status: word })));
}

// ---- charts ----

function minutes(seen) {
  const start = new Date(seen.charts.start);
  const size = seen.charts.completed.length;
  const at = (index) => clock(new Date(start.valueOf() + index * MINUTE_MS));
  return { moment: at, ends: [at(0), at(Math.round(size / 2)), 'now'] };
}

const sum = (values) => values.reduce((total, each) => total + (each ?? 0), 0);

function throughput(seen) {
  const { completed, failed } = seen.charts;
  const done = sum(completed);
  const bad = sum(failed);
  return card('Ended each minute', { id: 'throughput' }, chart({
    name: 'Ended each minute', kind: 'bars', resting: 'last hour', format: brief, ...minutes(seen),
    summary: `In the last hour ${done} completed and ${bad} failed.`,
    series: [
      { name: 'completed', tone: 'completed', values: completed, resting: done },
      { name: 'failed', tone: 'failed', values: failed, resting: bad },
    ],
  }));
}

function depth(seen) {
  const samples = thinned(seen.charts.depth ?? [], DEPTH_MOMENTS);
  if (samples.length === 0) return null;
  const last = samples.at(-1);
  const hasSeconds = new Date(last.at) - new Date(samples[0].at) < SHORT_MS;
  const at = (index) => clock(new Date(samples[index].at), { hasSeconds });
  return card('Waiting and running', { id: 'depth' }, chart({
    name: 'Waiting and running', kind: 'areas', resting: 'now', format: brief,
    moment: at, ends: [at(0), samples.length > 2 ? at(Math.floor(samples.length / 2)) : '', 'now'],
    summary: `Now ${last.due} due, ${last.running} running, ${last.scheduled} scheduled.`,
    series: ['running', 'due', 'scheduled'].map((name) => ({ name, tone: name, values: samples.map((one) => one[name]), resting: last[name] })),
  }));
}

function thinned(samples, most) {
  const step = Math.ceil(samples.length / most);
  return samples.filter((_, index) => (samples.length - 1 - index) % step === 0);
}

function waits(seen) {
  const waiting = seen.charts.waiting_secs_p50;
  const run = seen.charts.run_secs_p50;
  const latest = (values) => values.findLast((value) => value !== null && value !== undefined);
  return card('Half of the tasks took less than', { id: 'waits' }, chart({
    name: 'Half of the tasks took less than', kind: 'lines', resting: 'latest', format: duration, ...minutes(seen),
    summary: `Waiting ${duration(latest(waiting))}, running ${duration(latest(run))}.`,
    series: [
      { name: 'waiting', tone: 'due', values: waiting, resting: latest(waiting) },
      { name: 'running', tone: 'running', values: run, resting: latest(run) },
    ],
  }));
}

// ---- cost ----

function cost(seen) {
  const { tasks, process } = seen.cost;
  const { sample } = seen;
  const purposes = process.by_purpose.filter((one) => one.put + one.get + one.list + one.delete > 0);
  return card('Cost', { id: 'cost', aside: h('span', { class: 'faint' }, `list prices of ${seen.provider}`) },
    h('div', { class: 'price' },
      h('span', { class: 'price-value number' }, tasks.tasks > 0 ? usd(tasks.usd_per_million) : '–'),
      h('span', { class: 'soft' }, 'per million tasks')),
    h('p', { class: 'soft' }, tasks.tasks > 0
      ? `${counted(tasks.tasks, 'task')} took ${counted(tasks.requests, 'request')}, ${usd(tasks.usd)}. Looking for work is not in it.`
      : 'Nothing was submitted yet.'),
    h('p', { class: 'soft own-cost' }, 'This page: ', h('b', {}, counted(sample.requests, 'request')), `, ${usd(sample.usd)}${sample.requests_per_hour ? `, about ${count(sample.requests_per_hour)} an hour` : ''}.`),
    purposes.length > 0 && h('details', {},
      h('summary', {}, `This process: ${counted(process.requests, 'request')}, ${usd(process.usd)}`),
      plainTable('Requests of this process by purpose',
        [{ name: 'for' }, ...['put', 'get', 'list', 'delete'].map((name) => ({ name, isNumber: true })), { name: 'US$', isNumber: true }],
        purposes.map((one) => ({ key: one.purpose, cells: [one.purpose, one.put, one.get, one.list, one.delete, usd(one.usd).replace('US$', '')] })))));
}

// ---- tables ----

function types(seen) {
  const number = (value, type, status) => (value === 0 ? h('span', { class: 'faint' }, '0') : h('a', { href: link('tasks', { type, status }) }, count(value)));
  return card('Task types', { id: 'types' }, plainTable('Task types',
    [{ name: 'type' }, ...['pending', 'running', 'completed', 'failed', 'other'].map((name) => ({ name, isNumber: true }))],
    seen.types.map((one) => ({
      key: one.task_type,
      cells: [
        h('a', { class: 'type', href: link('tasks', { type: one.task_type }) }, one.task_type),
        ...['pending', 'running', 'completed', 'failed'].map((status) => number(one[status], one.task_type, status)),
        one.other,
      ],
    }))));
}

function failures(seen) {
  const rows = seen.recent_failures;
  return card('Failed lately', { id: 'failures', aside: rows.length > 0 && h('a', { href: link('tasks', { status: 'failed' }) }, 'all') },
    rows.length === 0
      ? h('p', { class: 'soft calm' }, 'Nothing has failed.')
      : h('ul', { class: 'failures' }, rows.map((row) => h('li', { key: row.id },
        h('a', { class: 'failure', href: taskLink(row.id), 'data-row': true },
          h('span', { class: 'failure-head' }, h('span', { class: 'type' }, row.task_type), ' ', h('span', { class: 'mono soft' }, shortId(row.id)), time(row.finished_at ?? row.updated_at)),
          h('span', { class: 'error-line' }, row.error ? gist(row.error) : 'no reason was given'))))));
}
