// Outposts view: machines that keep their part of the queue as files and sync with the bucket later. Shows the state
// recorded in the bucket.

import * as api from '../api.js';
import { h } from '../dom.js';
import { counted } from '../format.js';
import { empty, heading, plainTable, time } from '../parts.js';

export const isLive = true;
export const title = () => 'Outposts';
export const load = () => api.list('outposts');

export function render({ nodes }) {
  return [
    heading('Outposts', h('span', { class: 'soft' }, counted(nodes.length, 'node'))),
    h('section', { class: 'card flush' }, nodes.length === 0
      ? empty('No outposts yet', 'A node appears here after it has finished a task offline.', 'leasehold outpost init')
      : plainTable('Outposts', [{ name: 'node' }, { name: 'tasks held', isNumber: true }, { name: 'completed offline', isNumber: true }, { name: 'last seen' }],
        nodes.map((node) => ({
          key: node.node_id, cells: [h('span', { class: 'mono strong' }, node.node_id), node.holds, node.completed_offline, time(node.last_seen_at)],
        })), { isStacked: true })),
  ];
}
