// Form that asks for the token of a dashboard that requires one.

import { isToken } from '../api.js';
import { h } from '../dom.js';

export function render({ isWrong, given }) {
  const onsubmit = (event) => {
    event.preventDefault();
    const text = document.getElementById('token').value.trim();
    // Pasted text may contain characters that no token has, such as zero-width spaces.
    const token = [...text].filter(isToken).join('');
    if (token) given(token);
  };
  return h('div', { class: 'view', key: 'token' },
    h('form', { class: 'card ask', onsubmit },
      h('h1', {}, 'Token required'),
      h('p', { class: 'soft' }, 'Enter the dashboard token (', h('code', {}, 'LEASEHOLD_DASHBOARD_TOKEN'), ' or ', h('code', {}, '--token'), '). This tab keeps it until you close it.'),
      isWrong && h('p', { class: 'tone-failed wrong', role: 'alert' }, 'Wrong token.'),
      h('label', { class: 'field' }, h('span', { class: 'spoken' }, 'Token'),
        h('input', { id: 'token', type: 'password', autocomplete: 'off', placeholder: 'token' })),
      h('button', { type: 'submit', class: 'button main tone-running' }, 'Open')));
}
