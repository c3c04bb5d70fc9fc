// Charts: SVG with its labels as text beside it. The drawing is stretched to the available width, lines keep their
// thickness. Each chart has a text summary, and shows the values of one point in time under the pointer or, with the arrow
// keys, under the focus.

import { h, patch, svg } from './dom.js';
import { brief } from './format.js';

const HEIGHT = 100;

/** Selected index of each chart, by the chart's name. */
const selected = new Map();

/**
 * Chart of series over time.
 * `series`: [{name, tone, values}], values are null where there is no data. `kind`: 'bars', 'areas' (both stacked) or 'lines'.
 * `moment(index)` labels a point in time; `ends` are the labels below; `resting` is the legend's label when nothing is
 * selected; `round` returns the end of the axis for the highest value.
 */
export function chart(options) {
  const { name, series, kind, format = brief, round = niceTop, moment, ends, summary } = options;
  const size = series[0].values.length;
  const at = selected.get(name);
  const isSelected = at !== undefined && at < size;
  const top = round(highest(series, kind));

  const figure = h('figure', {
    class: 'chart', key: name, tabindex: '0', role: 'group', 'aria-label': `${name}. ${summary} Arrow keys read single values.`,
    onkeydown: (event) => stepped(event, size, at ?? size, highlight),
    onblur: () => highlight(undefined),
  },
  h('figcaption', { class: 'legend' },
    h('span', { class: 'moment soft' }, isSelected ? moment(at) : options.resting),
    series.map((one) => h('span', { class: `key tone-${one.tone}` },
      h('span', { class: 'soft' }, one.name), ' ',
      h('b', {}, legendValue(isSelected ? one.values[at] : one.resting, format))))),
  h('div', {
    class: 'plot',
    onpointermove: (event) => highlight(indexUnder(event, size)),
    onpointerleave: () => highlight(undefined),
  },
  svg('svg', { viewBox: `0 0 ${size} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    [0, 0.5, 1].map((share) => svg('line', { class: 'grid', x1: 0, x2: size, y1: HEIGHT * share, y2: HEIGHT * share })),
    isSelected && svg('rect', { class: 'selected', x: at, width: 1, y: 0, height: HEIGHT }),
    { bars, areas, lines }[kind](series, top)),
  h('span', { class: 'axis top', 'aria-hidden': 'true' }, format(top)),
  (kind === 'lines' || top % 2 === 0) && h('span', { class: 'axis middle', 'aria-hidden': 'true' }, format(top / 2))),
  h('div', { class: 'ends', 'aria-hidden': 'true' }, ends.map((end) => h('span', {}, end))));

  let shown = figure;
  function highlight(index) {
    if (selected.get(name) === index) return;
    if (index === undefined) selected.delete(name); else selected.set(name, index);
    // The figure on the page may be an older element that this one was patched into.
    shown = [...document.querySelectorAll('figure.chart')].find((one) => one.patchKey === name) ?? shown;
    patch(shown, chart(options));
  }
  return figure;
}

const legendValue = (value, format) => (value === null || value === undefined ? '–' : format(value));

function stepped(event, size, at, highlight) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  highlight(Math.min(size - 1, Math.max(0, at + step)));
}

function indexUnder(event, size) {
  const box = event.currentTarget.getBoundingClientRect();
  return Math.min(size - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * size)));
}

function highest(series, kind) {
  const sizes = series[0].values.map((_, index) => {
    const values = series.map((one) => one.values[index] ?? 0);
    return kind === 'lines' ? Math.max(...values) : values.reduce((sum, value) => sum + value, 0);
  });
  return Math.max(0, ...sizes);
}

/** Next round number: an axis that ends at 437 is hard to read. */
export function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

const DAY_SECS = 86_400;
/** Durations with a short label whose halves also have one: 20 s and 10 s, 4 min and 2 min, 1 h and 30 min. */
const ROUND_SECS = [
  0.002, 0.004, 0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1, 2, 4, 10, 20, 30, 60, 120, 240, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, DAY_SECS,
];

/** Next round duration. A round number of seconds does not do: 200 s is "3 min 20 s", too long for an axis label. */
export function roundDuration(secs) {
  if (secs <= 0) return 1;
  const known = ROUND_SECS.find((one) => one >= secs);
  if (known) return known;
  const days = secs / DAY_SECS;
  const power = 10 ** Math.floor(Math.log10(days));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= days) * DAY_SECS;
}

const level = (value, top) => hundredths(HEIGHT - value / top * HEIGHT);
const hundredths = (number) => Math.round(number * 100) / 100;

/** Cumulative sums below each series when stacked: one list more than there are series. */
function stacked(series) {
  return series.reduce((sums, one) => [...sums, one.values.map((value, index) => sums.at(-1)[index] + (value ?? 0))],
    [series[0].values.map(() => 0)]);
}

function bars(series, top) {
  const sums = stacked(series);
  return series.flatMap((one, layer) => one.values.map((value, index) => value > 0 && svg('rect', {
    class: `bar tone-${one.tone}`, x: index + 0.14, width: 0.72,
    y: level(sums[layer + 1][index], top), height: hundredths(value / top * HEIGHT),
  })));
}

function areas(series, top) {
  const sums = stacked(series);
  const size = series[0].values.length;
  // Straight lines between points; the first and the last value extend to the borders.
  const edge = (sum) => [[0, sum[0]], ...sum.map((value, index) => [index + 0.5, value]), [size, sum.at(-1)]]
    .map(([x, value]) => `${x},${level(value, top)}`);
  return series.map((one, layer) => {
    const upper = edge(sums[layer + 1]);
    const lower = edge(sums[layer]).reverse();
    return [
      svg('polygon', { class: `area tone-${one.tone}`, points: [...upper, ...lower].join(' ') }),
      one.values.some((value) => value > 0) && svg('polyline', { class: `line tone-${one.tone}`, points: upper.join(' ') }),
    ];
  });
}

/** Lines with gaps where there is no data; an isolated value is a short stroke. */
function lines(series, top) {
  return series.map((one) => {
    const path = one.values.map((value, index) => {
      if (value === null || value === undefined) return '';
      const before = one.values[index - 1];
      const y = level(value, top);
      if (before !== null && before !== undefined) return `L${index + 0.5} ${y}`;
      const after = one.values[index + 1];
      return after === null || after === undefined ? `M${index + 0.1} ${y}H${index + 0.9}` : `M${index + 0.5} ${y}`;
    });
    return svg('path', { class: `line tone-${one.tone}`, d: path.join('') || 'M0 0' });
  });
}
