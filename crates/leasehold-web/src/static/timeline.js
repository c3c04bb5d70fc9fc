// Timeline of a task: a line from its submission to now, with attempts as bars and events as points.
//
// A task may wait a day and run for a second, so the line is not to scale: the width of each interval is proportional to
// the logarithm of its length, and a label shows the length.

import { h, svg } from './dom.js';
import { absolute, duration } from './format.js';
import { gist, pill, time } from './parts.js';

/** Smallest share of the line at which an interval has room for its label. */
const LABEL_SHARE = 0.075;
const PHONE_SHARE = 0.16;
const INTERVAL_MIN_SECS = 0.2;

/** Colour of an attempt, by the event that ended it. */
const TONES = {
  complete: 'completed', completed_offline: 'completed', fail: 'failed', failed_offline: 'failed', 'time out': 'failed', timeout: 'failed',
  stop: 'cancelled', snooze: 'scheduled', release: 'scheduled', reschedule: 'scheduled',
};
const EVENT_TONES = {
  ...TONES, submit: 'plain', claim: 'running', 'take over': 'running', cancel: 'cancelled', expire: 'expired', retry: 'due',
};

export function timeline({ history, attempts, folded, task }, now) {
  if (history.length === 0) return h('p', { class: 'soft' }, 'No history recorded.');
  const intervals = intervalsOf(history, task, now);
  return h('div', { class: 'life' },
    drawStrip(intervals, attempts, now),
    folded > 0 && h('p', { class: 'soft' }, `${folded} changes between the first and the newest are no longer kept.`),
    h('ol', { class: 'events', 'aria-label': 'History' }, history.map((change, index) => event(change, history[index - 1], task.error))));
}

/** Intervals from each event to the next, with their share of the width. */
function intervalsOf(history, task, now) {
  const isFinal = Boolean(task.finished_at);
  const moments = history.map((change) => new Date(change.at));
  if (!isFinal) moments.push(new Date(Math.max(now, moments.at(-1))));
  const lengths = moments.slice(1).map((moment, index) => Math.max(0, (moment - moments[index]) / 1000));
  const weights = lengths.map((secs) => Math.log1p(Math.max(secs, INTERVAL_MIN_SECS) * 4));
  const sum = weights.reduce((total, weight) => total + weight, 0) || 1;
  let from = 0;
  const intervals = lengths.map((secs, index) => {
    const share = weights[index] / sum;
    const interval = { from, share, secs, change: history[index], next: history[index + 1] };
    from += share;
    return interval;
  });
  return { intervals, moments, isFinal };
}

/** Merges the intervals of one attempt into one bar, whatever events happened during it. */
function mergeRuns(intervals) {
  const bars = [];
  for (const one of intervals) {
    const last = bars.at(-1);
    const isSameRun = last?.change.to === 'running' && one.change.to === 'running' && last.change.epoch === one.change.epoch;
    if (isSameRun) Object.assign(last, { share: last.share + one.share, secs: last.secs + one.secs, next: one.next });
    else bars.push({ ...one });
  }
  return bars;
}

/** Label of an event. Cancelling a running task is only a request: its worker has yet to stop. */
const eventLabel = (change) => (change.event === 'cancel' && change.to === 'running' ? 'cancel requested' : change.event);

function drawStrip({ intervals, moments, isFinal }, attempts, now) {
  const percent = (share) => `${Math.round(share * 98_00 + 1_00) / 100}%`;
  const wide = (share) => `${Math.round(share * 98_00) / 100}%`;
  const first = moments[0];
  const last = moments.at(-1);
  const bars = mergeRuns(intervals);
  const runs = bars.filter(({ change }) => change.to === 'running');
  const ended = isFinal ? 'finished' : 'now';
  const summary = `${attempts.length} ${attempts.length === 1 ? 'attempt' : 'attempts'} in ${duration((last - first) / 1000)}`;
  return h('div', { class: 'drawn' },
    svg('svg', { class: 'strip', role: 'img', 'aria-label': `Timeline: ${summary}. The list below has every event.` },
      svg('line', { class: 'track', x1: percent(0), x2: percent(1), y1: 34, y2: 34 }),
      runs.map(({ from, share, change, next }) => svg('rect', {
        class: `run tone-${next ? TONES[next.event] ?? 'running' : 'running'}`, x: percent(from), width: wide(share), y: 22, height: 24, rx: 4,
      }, svg('title', {}, `attempt ${change.attempt}, epoch ${change.epoch}, by ${change.by}`))),
      bars.map(({ from, share, secs, change }) => share >= LABEL_SHARE && [
        svg('text', { class: `${change.to === 'running' ? 'in-run' : 'waited'}${share < PHONE_SHARE ? ' narrow' : ''}`, x: percent(from + share / 2), y: change.to === 'running' ? 38.5 : 60, 'text-anchor': 'middle' },
          duration(secs)),
        change.to === 'running' && svg('text', { class: 'above', x: percent(from + share / 2), y: 14, 'text-anchor': 'middle' }, `attempt ${change.attempt}`),
      ]),
      intervals.map(({ from, change }) => point(percent(from), change)),
      isFinal && intervals.length > 0 && point(percent(1), intervals.at(-1).next)),
    h('div', { class: 'ends' }, h('span', {}, 'submitted ', time(first.toISOString())),
      h('span', { class: 'summary' }, summary), h('span', {}, `${ended} `, isFinal && time(last.toISOString()))));
}

function point(x, change) {
  return svg('circle', { class: `point tone-${EVENT_TONES[change.event] ?? 'plain'}`, cx: x, cy: 34, r: 5 },
    svg('title', {}, `${eventLabel(change)}, ${absolute(new Date(change.at))}`));
}

function event(change, before, error) {
  const since = before && (new Date(change.at) - new Date(before.at)) / 1000;
  return h('li', { class: `event tone-${EVENT_TONES[change.event] ?? 'plain'}` },
    h('div', { class: 'event-head' },
      h('b', {}, eventLabel(change)), pill(change.to),
      h('span', { class: 'soft' }, 'by ', h('span', { class: 'mono' }, change.by)),
      change.epoch > 0 && h('span', { class: 'faint' }, `attempt ${change.attempt}, epoch ${change.epoch}`),
      h('span', { class: 'when number' }, before && h('span', { class: 'faint' }, `+${duration(since)}`), time(change.at))),
    // The full text of the last error is shown above.
    change.why && h('pre', { class: 'why' }, change.why === error ? gist(error) : change.why));
}
