// Frame of the page: selects the view and polls the server.
//
// One loop requests the overview every two seconds while the page is visible; the server answers from memory, with 304 if
// nothing has changed. A view loads its data and renders itself; it is loaded again when there is a new sample.

import * as api from './api.js';
import { h, patch, show } from './dom.js';
import { clock, count, counted, usd } from './format.js';
import { help, listen } from './keys.js';
import { banner, empty, icon, setClock, speak, tick } from './parts.js';
import { go, route } from './router.js';
import * as artifacts from './views/artifacts.js';
import * as outposts from './views/outposts.js';
import * as overview from './views/overview.js';
import * as settings from './views/settings.js';
import * as shards from './views/shards.js';
import * as task from './views/task.js';
import * as tasks from './views/tasks.js';
import * as token from './views/token.js';
import * as workers from './views/workers.js';

const POLL_MS = 2_000;
const VIEWS = { overview, tasks, workers, shards, artifacts, outposts, settings };
const NAMES = {
  overview: 'Overview', tasks: 'Tasks', workers: 'Workers', shards: 'Shards', artifacts: 'Artifacts', outposts: 'Outposts', settings: 'Settings',
};

const state = {
  /** Last overview, and the time when it was received. */
  overview: null,
  overviewAt: 0,
  /** View and data in the main part, and the sample that they come from. */
  shown: null,
  revision: undefined,
  /** Incremented with every change of the address: a response for an older address is dropped. */
  visit: 0,
  /** List that a task was opened from. */
  list: '#/tasks',
  isLost: false,
  wantsToken: false,
};

const main = document.getElementById('main');
let wake = () => {};

// ---- rendering ----

function current() {
  const at = route();
  if (at.view === 'tasks' && at.rest.length > 0) return { at, view: task, name: 'tasks' };
  const name = VIEWS[at.view] && hasView(at.view) ? at.view : 'overview';
  return { at, view: VIEWS[name], name };
}

/** Views of one layout of a queue only. */
const hasView = (name) => name !== 'shards' || state.overview?.layout !== 'journal';

/** Context of a view, besides its own data. */
const context = (at) => ({
  at, overview: state.overview, list: state.list,
  changed: () => { state.revision = undefined; wake(); },
});

async function draw({ isNew }) {
  const visit = state.visit;
  const { at, view } = current();
  // The address may have changed during a poll: the data shown may be that of another view.
  const known = !isNew && state.shown?.view === view ? state.shown.data : null;
  const data = await view.load(context(at), known);
  if (visit !== state.visit) return;
  announce(view, state.shown?.view === view && !isNew ? state.shown.data : null, data);
  state.shown = { view, data };
  const fresh = h('div', { class: 'view', key: `${at.view}/${at.rest.join('/')}` }, view.render(data, context(at)));
  if (main.firstElementChild?.patchKey === fresh.patchKey) patch(main.firstElementChild, fresh);
  else main.replaceChildren(fresh);
  document.title = `${view.title(data, at)} · Leasehold`;
}

function announce(view, before, after) {
  const text = before && view.announcement?.(before, after);
  if (text) speak(text);
}

function drawFrame() {
  const { name } = current();
  const seen = state.overview;
  const names = Object.keys(NAMES).filter((one) => hasView(one) && (!['artifacts', 'outposts'].includes(one) || seen?.has?.[one] || name === one));
  const open = seen && seen.counts.pending + seen.counts.running;
  show(document.getElementById('side'),
    h('a', { class: 'brand', href: '#/overview' }, mark(), h('span', {}, 'Leasehold')),
    h('nav', { 'aria-label': 'Views' }, names.map((one) => h('a', { key: one, href: `#/${one}`, 'aria-current': one === name && 'page' },
      icon(one), h('span', {}, NAMES[one]),
      one === 'tasks' && open > 0 && h('span', { class: 'badge number', title: 'pending and running' }, count(open))))),
    h('div', { class: 'side-foot' },
      seen && h('div', { class: 'store' },
        h('p', { class: 'soft' }, 'store'), h('p', { class: 'mono break' }, seen.store),
        h('p', { class: 'faint' }, `${seen.layout === 'journal' ? 'journal' : `${count(seen.shards)} shards`} · version ${seen.version}`)),
      seen && h('p', { class: 'own soft', title: 'Store requests made by this dashboard since it started' },
        `this dashboard: ${counted(seen.sample.requests, 'request')}${seen.is_billed ? `, ${usd(seen.sample.usd)}` : ''}`),
      h('div', { class: 'tools' },
        h('button', { type: 'button', class: 'tool', onclick: changeTheme, 'aria-label': `Theme: ${themeName()}`, title: `Theme: ${themeName()} (d)` },
          icon('theme'), h('span', {}, themeName())),
        h('button', { type: 'button', class: 'tool', onclick: help, 'aria-label': 'Keyboard shortcuts', title: 'Keyboard shortcuts (?)' }, icon('help'), h('span', {}, 'Shortcuts')))));
}

const mark = () => h('span', { class: 'mark', 'aria-hidden': 'true' });

const themeName = () => ({ auto: 'Auto', light: 'Light', dark: 'Dark' })[window.leaseholdTheme.choice];

function changeTheme() {
  window.leaseholdTheme.next();
  drawFrame();
  speak(`Theme: ${themeName()}`);
}

/** Shows the current problem in the banner; clears it when there is none. */
function drawBanner() {
  const sample = state.overview?.sample;
  if (state.isLost) {
    banner(`The dashboard server is not responding; retrying every two seconds.${seenAt(state.overviewAt)}`);
  } else if (sample?.error) {
    banner(`Failed to read the store: ${sample.error}.${seenAt(state.overviewAt - sample.age_secs * 1000)}`);
  } else if (state.overview?.broker?.is_reached === false) {
    banner(`No broker can be reached. The tasks are read from the log, less often.${seenAt(state.overviewAt - sample.age_secs * 1000)}`);
  } else if (sample?.is_cut) {
    banner(`Too many tasks: this page shows and counts only the first ${count(sample.rows)}.`, 'due');
  } else if (sample && !sample.is_complete) {
    banner(sample.listed > 0 ? `Loading tasks: ${count(sample.read)} of ${count(sample.listed)} so far.` : 'Loading tasks.', 'running');
  } else if (sample?.corrupt > 0) {
    banner(`${counted(sample.corrupt, 'task record is', 'task records are')} corrupt; run \`leasehold check\` to list them.`, 'due');
  } else {
    banner(null);
  }
}

/** Time of the data shown. A time and not an age, so that screen readers announce it once and not on every tick. */
const seenAt = (ms) => (state.overview ? ` Showing data from ${clock(new Date(ms))}.` : '');

// ---- polling loop ----

async function poll() {
  const fresh = await api.overview(state.overview?.sample.revision);
  if (fresh) {
    state.overview = fresh;
    setClock(fresh.now);
  }
  state.overviewAt = Date.now();
  const { view } = current();
  const isChanged = state.revision !== state.overview.sample.revision;
  // A failed request is repeated only when something has changed.
  const isLive = view.isLive && state.shown?.view === view;
  state.revision = state.overview.sample.revision;
  if (isChanged || isLive) await draw({ isNew: false });
}

async function round() {
  try {
    await poll();
    state.isLost = false;
    state.wantsToken = false;
  } catch (error) {
    trouble(error);
  }
  drawFrame();
  drawBanner();
}

function trouble(error) {
  // A bug in the page must not end its loop; it is logged to the console.
  if (!(error instanceof api.ApiError)) return console.error(error);
  state.isLost = error.status === 0;
  if (error.status === 401) return askForToken();
  if (error.status === 0 || error.status >= 500) state.revision = undefined;
  if (error.status !== 0) drawRefusal(error);
}

function drawRefusal({ status, message }) {
  state.shown = null;
  const title = status === 404 ? 'Task not found' : 'Request failed';
  show(main, h('div', { class: 'view', key: 'refused' }, empty(title, message)));
}

function askForToken() {
  if (state.wantsToken) return;
  state.wantsToken = true;
  show(main, token.render({ isWrong: api.hasToken(), given: (text) => { api.setToken(text); state.wantsToken = false; wake(); } }));
  const field = document.getElementById('token');
  field.value = '';
  field.focus();
}

/** Waits until the next poll is due, `wake` is called, or the page becomes visible again. */
function pause() {
  return new Promise((resolve) => {
    let timer = document.hidden ? undefined : setTimeout(resolve, POLL_MS);
    wake = () => { clearTimeout(timer); resolve(); };
    document.onvisibilitychange = () => {
      clearTimeout(timer);
      if (!document.hidden) timer = setTimeout(resolve, 0);
    };
  });
}

async function visit() {
  state.visit += 1;
  const { at, name } = current();
  if (name === 'tasks' && at.rest.length === 0) state.list = location.hash || '#/tasks';
  drawFrame();
  if (!state.overview) return;
  try {
    await draw({ isNew: true });
  } catch (error) {
    trouble(error);
  }
}

function back() {
  if (route().rest.length > 0) go(state.list);
  else document.activeElement?.blur();
}

async function start() {
  api.takeTokenFromAddress();
  drawFrame();
  listen({ back, changeTheme });
  document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
  window.addEventListener('hashchange', () => {
    if (location.hash.startsWith('#token=')) { api.takeTokenFromAddress(); state.wantsToken = false; wake(); } else visit();
  });
  setInterval(tick, 1_000);
  for (;;) {
    await round();
    await pause();
  }
}

start();
