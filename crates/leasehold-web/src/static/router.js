// Routes in the fragment of the address: `#/tasks?status=failed&offset=50`. The browser's back button, bookmarks and shared
// links work, and the server receives only requests for data.

/** Parses the address into view, path and parameters. A token in it is not a route: see `api.js`. */
export function route(hash = location.hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [view = '', ...rest] = path.split('/');
  return { view: view || 'overview', rest: rest.map(decoded), params: new URLSearchParams(query) };
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

/** Builds the address of a view. Parameters without a value are omitted. */
export function link(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== ''));
  return `#/${path}${query.size ? `?${query}` : ''}`;
}

export const taskLink = (id) => `#/tasks/${encodeURIComponent(id)}`;

export function go(hash) {
  location.hash = hash;
}

/** Changes the address without an entry in the browser's history: for text that is being typed. */
export function amend(hash) {
  history.replaceState(null, '', hash);
  window.dispatchEvent(new HashChangeEvent('hashchange'));
}
