// The frame of the page: which view is shown, what is asked for and when.
//
// One loop asks for the overview every two seconds while the page can be seen; the server answers from memory and says
// nothing if nothing has changed. A view loads its data and draws itself; it is loaded again when there is a new sample.

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
  /** The last overview, and when it came. */
  overview: null,
  overviewAt: 0,
  /** What is drawn in the main part, and from which sample. */
  shown: null,
  revision: undefined,
  /** Grows with every change of the address: an answer for an older one is thrown away. */
  visit: 0,
  /** The list that a task was opened from. */
  list: '#/tasks',
  isLost: false,
  wantsToken: false,
};

const main = document.getElementById('main');
let wake = () => {};

// ---- what is shown ----

function current() {
  const at = route();
  if (at.view === 'tasks' && at.rest.length > 0) return { at, view: task, name: 'tasks' };
  const name = VIEWS[at.view] ? at.view : 'overview';
  return { at, view: VIEWS[name], name };
}

/** What a view may know and do besides its own data. */
const context = (at) => ({
  at, overview: state.overview, list: state.list,
  changed: () => { state.revision = undefined; wake(); },
});

async function draw({ isNew }) {
  const visit = state.visit;
  const { at, view } = current();
  const data = await view.load(context(at), isNew ? null : state.shown?.data);
  if (visit !== state.visit) return;
  announce(view, state.shown?.view === view && !isNew ? state.shown.data : null, data);
  state.shown = { view, data };
  const fresh = h('div', { class: 'view', key: `${at.view}/${at.rest.join('/')}` }, view.render(data, context(at)));
  if (main.firstElementChild?.patchKey === fresh.patchKey) patch(main.firstElementChild, fresh);
  else main.replaceChildren(fresh);
  document.title = `${view.title(data, at)} · Leasehold`;
}

function announce(view, before, after) {
  const text = before && view.news?.(before, after);
  if (text) speak(text);
}

function drawFrame() {
  const { name } = current();
  const seen = state.overview;
  const names = Object.keys(NAMES).filter((one) => !['artifacts', 'outposts'].includes(one) || seen?.has?.[one] || name === one);
  const open = seen && seen.counts.pending + seen.counts.running;
  show(document.getElementById('side'),
    h('a', { class: 'brand', href: '#/overview' }, mark(), h('span', {}, 'Leasehold')),
    h('nav', { 'aria-label': 'Views' }, names.map((one) => h('a', { key: one, href: `#/${one}`, 'aria-current': one === name && 'page' },
      icon(one), h('span', {}, NAMES[one]),
      one === 'tasks' && open > 0 && h('span', { class: 'badge number', title: 'pending and running' }, count(open))))),
    h('div', { class: 'side-foot' },
      seen && h('div', { class: 'store' },
        h('p', { class: 'soft' }, 'store'), h('p', { class: 'mono break' }, seen.store),
        h('p', { class: 'faint' }, `${count(seen.shards)} shards · version ${seen.version}`)),
      seen && h('p', { class: 'own soft', title: 'What this dashboard itself has asked of the store since it was started' },
        `this page: ${counted(seen.sample.requests, 'request')}${seen.is_billed ? `, ${usd(seen.sample.usd)}` : ''}`),
      h('div', { class: 'tools' },
        h('button', { type: 'button', class: 'tool', onclick: changeTheme, 'aria-label': `Colours: ${themeName()}`, title: `Colours: ${themeName()} (d)` },
          icon('theme'), h('span', {}, themeName())),
        h('button', { type: 'button', class: 'tool', onclick: help, 'aria-label': 'Keys', title: 'Keys (?)' }, icon('help'), h('span', {}, 'Keys')))));
}

const mark = () => h('span', { class: 'mark', 'aria-hidden': 'true' });

const themeName = () => ({ auto: 'Auto', light: 'Light', dark: 'Dark' })[window.leaseholdTheme.choice];

function changeTheme() {
  window.leaseholdTheme.next();
  drawFrame();
  speak(`Colours: ${themeName()}`);
}

/** What is wrong, or nothing: goes away by itself when all is well again. */
function drawBanner() {
  const sample = state.overview?.sample;
  if (state.isLost) {
    banner(`The dashboard does not answer; asking again every two seconds.${seenAt(state.overviewAt)}`);
  } else if (sample?.error) {
    banner(`The store could not be read: ${sample.error}.${seenAt(state.overviewAt - sample.age_secs * 1000)}`);
  } else if (sample?.is_cut) {
    banner(`There are more tasks than this page can hold: it shows and counts the first ${count(sample.rows)}.`, 'due');
  } else if (sample && !sample.is_complete) {
    banner(sample.listed > 0 ? `Reading the tasks: ${count(sample.read)} of ${count(sample.listed)} so far.` : 'Reading the tasks.', 'running');
  } else if (sample?.corrupt > 0) {
    banner(`${counted(sample.corrupt, 'object is', 'objects are')} not as a task should be; \`leasehold check\` names them.`, 'due');
  } else {
    banner(null);
  }
}

/** A moment rather than an age: it is read aloud once and not every time it has grown. */
const seenAt = (ms) => (state.overview ? ` What you see is from ${clock(new Date(ms))}.` : '');

// ---- the loop ----

async function look() {
  const fresh = await api.overview(state.overview?.sample.revision);
  if (fresh) {
    state.overview = fresh;
    setClock(fresh.now);
  }
  state.overviewAt = Date.now();
  const { view } = current();
  const isChanged = state.revision !== state.overview.sample.revision;
  // What was refused is asked for again only when something has changed.
  const isLive = view.isLive && state.shown?.view === view;
  state.revision = state.overview.sample.revision;
  if (isChanged || isLive) await draw({ isNew: false });
}

async function round() {
  try {
    await look();
    state.isLost = false;
    state.wantsToken = false;
  } catch (error) {
    trouble(error);
  }
  drawFrame();
  drawBanner();
}

function trouble(error) {
  // A fault of the page itself must not end its loop; the console tells of it.
  if (!(error instanceof api.Refused)) return console.error(error);
  state.isLost = error.status === 0;
  if (error.status === 401) return askForToken();
  if (error.status === 0 || error.status >= 500) state.revision = undefined;
  if (error.status !== 0) drawRefusal(error);
}

function drawRefusal({ status, message }) {
  state.shown = null;
  const title = status === 404 ? 'There is no such task' : 'That did not work';
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

/** Until it is time again, someone wants to know at once, or the page can be seen again. */
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
