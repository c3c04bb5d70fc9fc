// Keyboard shortcuts. Every action is reachable from the keyboard.

import { h } from './dom.js';
import { openDialog } from './parts.js';
import { go, route } from './router.js';

const VIEW_KEYS = { o: 'overview', t: 'tasks', w: 'workers', s: 'shards', a: 'artifacts', p: 'outposts', e: 'settings' };
/** Longest pause between `g` and the key that selects the view. */
const PAUSE_MS = 1_500;

const HELP = [
  ['/', 'search tasks'],
  ['g o', 'go to the overview; g t tasks, g w workers, g s shards, g a artifacts, g p outposts, g e settings'],
  ['j k', 'next and previous task in a list'],
  ['Enter', 'open the task'],
  ['Esc', 'leave a field, dialog or task'],
  ['← →', 'move through a chart or the shard map'],
  ['d', 'change the theme: auto, light, dark'],
  ['?', 'show this help'],
];

let pressed = { key: '', at: 0 };

/** Installs the shortcuts. `back` leaves the open view, `changeTheme` switches to the next theme. */
export function listen({ back, changeTheme }) {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (isTyping(event.target)) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const isSecond = pressed.key === 'g' && event.timeStamp - pressed.at < PAUSE_MS;
    pressed = { key: event.key, at: event.timeStamp };
    const action = isSecond ? viewAction(event.key) : command(event.key, { back, changeTheme });
    if (!action) return;
    event.preventDefault();
    action();
  });
}

const isTyping = (element) => element.matches('textarea, select, input:not([type=checkbox])');

const viewAction = (key) => VIEW_KEYS[key] && (() => go(`#/${VIEW_KEYS[key]}`));

function command(key, { back, changeTheme }) {
  return {
    '/': search, j: () => move(1), k: () => move(-1), Escape: back, '?': help, d: changeTheme,
  }[key];
}

function search() {
  const field = document.getElementById('search');
  if (field) return field.select();
  if (route().view !== 'tasks' || route().rest.length > 0) go('#/tasks');
  // The view is rendered once its data has loaded.
  const watch = new MutationObserver(() => {
    const drawn = document.getElementById('search');
    if (drawn) { watch.disconnect(); drawn.focus(); }
  });
  watch.observe(document.getElementById('main'), { childList: true, subtree: true });
}

/** Moves the focus to the next or previous row; to the first one if none has the focus. */
function move(step) {
  const rows = [...document.querySelectorAll('[data-row]')];
  const at = rows.indexOf(document.activeElement);
  const next = rows[at === -1 ? 0 : Math.min(rows.length - 1, Math.max(0, at + step))];
  next?.focus();
  next?.scrollIntoView({ block: 'nearest' });
}

export function help() {
  const dialog = h('dialog', { class: 'dialog help', 'aria-labelledby': 'keys' },
    h('h2', { id: 'keys' }, 'Keyboard shortcuts'),
    h('dl', { class: 'keys' }, HELP.map(([key, text]) => h('div', {},
      h('dt', {}, key.split(' ').map((one) => h('kbd', {}, one))), h('dd', {}, text)))),
    h('div', { class: 'buttons' }, h('button', { type: 'button', class: 'button', onclick: () => dialog.close() }, 'Close')));
  openDialog(dialog);
}
