// Settings view: effective settings and the source of each; the server masks secrets.

import * as api from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { card, facts, heading, plainTable } from '../parts.js';

export const title = () => 'Settings';
export const load = () => api.list('settings');

export function render({ settings }, { overview }) {
  return [
    heading('Settings'),
    card('This dashboard', { id: 'about' }, facts([
      ['store', h('span', { class: 'mono break' }, overview.store)],
      ['layout', overview.layout],
      overview.layout === 'objects' && ['shards', count(overview.shards)],
      ['version', overview.version],
      ['actions', overview.allow_actions ? 'allowed' : h('span', { class: 'long' }, 'read-only; start with --allow-actions to change tasks')],
      ['prices', overview.provider],
    ])),
    card('Effective settings', { id: 'settings' }, plainTable('Settings', [{ name: 'setting' }, { name: 'value' }, { name: 'source' }],
      settings.map(({ key, value, from }) => ({
        key, cells: [h('span', { class: 'mono' }, key), h('span', { class: 'mono break' }, shown(value)), h('span', { class: 'soft' }, from)],
      })), { isStacked: true })),
  ];
}

function shown(value) {
  if (value === null || value === undefined || value === '') return h('span', { class: 'faint' }, 'unset');
  return typeof value === 'string' ? value : JSON.stringify(value);
}
