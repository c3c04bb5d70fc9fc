// Formatting of numbers, times and amounts.

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

/** 12,345 */
export const count = (number) => whole.format(number);

/** 12.3K: for axis and legend labels. */
export const brief = (number) => (Math.abs(number) < 10_000 ? whole.format(Math.round(number * 100) / 100) : short.format(number));

/** "1 task", "2 tasks" */
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** 35 ms · 0.4 s · 12 s · 4 min · 3 h 20 min · 2 d 4 h */
export function duration(secs) {
  if (secs === null || secs === undefined || Number.isNaN(secs)) return '–';
  if (secs < 0.0995) return `${Math.max(0, Math.round(secs * 1000))} ms`;
  if (secs < 9.95) return `${Number(secs.toPrecision(2))} s`;
  if (secs < MINUTE) return `${Math.round(secs)} s`;
  if (secs < 10 * MINUTE) return two(secs, MINUTE, 'min', 1, 's');
  if (secs < HOUR) return `${Math.round(secs / MINUTE)} min`;
  if (secs < DAY) return two(secs, HOUR, 'h', MINUTE, 'min');
  if (secs < 100 * DAY) return two(secs, DAY, 'd', HOUR, 'h');
  return `${count(Math.round(secs / DAY))} d`;
}

function two(secs, large, largeName, small, smallName) {
  const smalls = Math.floor(secs / small);
  const per = large / small;
  const rest = smalls % per;
  return `${Math.floor(smalls / per)} ${largeName}${rest ? ` ${rest} ${smallName}` : ''}`;
}

function coarse(secs) {
  if (secs < MINUTE) return `${Math.floor(secs)} s`;
  if (secs < HOUR) return `${Math.floor(secs / MINUTE)} min`;
  if (secs < 2 * DAY) return `${Math.floor(secs / HOUR)} h`;
  return `${count(Math.floor(secs / DAY))} d`;
}

/** 12 s ago · in 4 min · now */
export function relative(moment, now) {
  const secs = (now - moment) / 1000;
  if (Math.abs(secs) < 1) return 'now';
  const rounded = coarse(Math.abs(secs));
  return secs > 0 ? `${rounded} ago` : `in ${rounded}`;
}

/** 2026-12-24 18:00:00.250 UTC */
export const absolute = (moment) => `${moment.toISOString().replace('T', ' ').replace('Z', '')} UTC`;

/** 18:00, or 18:00:07, in the browser's time zone. */
export const clock = (moment, { hasSeconds = false } = {}) =>
  moment.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: hasSeconds ? '2-digit' : undefined });

/** US$0.00042 · US$1.25 · US$1,204 */
export function usd(amount) {
  if (!amount) return 'US$0';
  if (amount >= 1000) return `US$${count(Math.round(amount))}`;
  if (amount >= 0.1) return `US$${amount.toFixed(2)}`;
  if (amount < 0.000_000_1) return 'less than US$0.0000001';
  const digits = Math.min(8, 1 - Math.floor(Math.log10(amount)));
  return `US$${amount.toFixed(digits)}`;
}

/** 512 B · 1.5 MiB */
export function bytes(size) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  const step = Math.min(units.length - 1, size > 0 ? Math.floor(Math.log2(size) / 10) : 0);
  const value = size / 1024 ** step;
  return `${step === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[step]}`;
}

/** Part of a task's id: enough to tell tasks apart by eye. An id that sorts by time (version 7) begins like those of its time. */
export const shortId = (id) => (id[14] === '7' ? `…${id.slice(-8)}` : id.slice(0, 8));
