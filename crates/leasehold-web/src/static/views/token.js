// Asks for the token of a dashboard that wants one.

import { isToken } from '../api.js';
import { h } from '../dom.js';

export function render({ isWrong, given }) {
  const onsubmit = (event) => {
    event.preventDefault();
    const text = document.getElementById('token').value.trim();
    // Something that came along with a paste is nothing of a token.
    const token = [...text].filter(isToken).join('');
    if (token) given(token);
  };
  return h('div', { class: 'view', key: 'token' },
    h('form', { class: 'card ask', onsubmit },
      h('h1', {}, 'This dashboard wants a token'),
      h('p', { class: 'soft' }, 'It is what was given to ', h('code', {}, 'leasehold dashboard --token'), '. This tab keeps it until it is closed.'),
      isWrong && h('p', { class: 'tone-failed wrong', role: 'alert' }, 'The token is not the right one.'),
      h('label', { class: 'field' }, h('span', { class: 'spoken' }, 'Token'),
        h('input', { id: 'token', type: 'password', autocomplete: 'off', placeholder: 'token' })),
      h('button', { type: 'submit', class: 'button main tone-running' }, 'Open')));
}
