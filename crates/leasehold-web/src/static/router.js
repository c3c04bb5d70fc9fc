// Where on the page one is stands behind the `#`: `#/tasks?status=failed&offset=50`. So the browser's own back button,
// bookmarks and links that are sent around work, and the server hears of nothing but data.

/** What the address says. A token in it is not a place: see `api.js`. */
export function route(hash = location.hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [view = '', ...rest] = path.split('/');
  return { view: view || 'overview', rest: rest.map(decoded), params: new URLSearchParams(query) };
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

/** The address of a view. Parameters without a value are left out. */
export function link(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== ''));
  return `#/${path}${query.size ? `?${query}` : ''}`;
}

export const taskLink = (id) => `#/tasks/${encodeURIComponent(id)}`;

export function go(hash) {
  location.hash = hash;
}

/** Changes the address without a step in the browser's history: for what is typed letter by letter. */
export function amend(hash) {
  history.replaceState(null, '', hash);
  window.dispatchEvent(new HashChangeEvent('hashchange'));
}
