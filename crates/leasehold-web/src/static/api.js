// Client of the server's JSON API. The server answers from memory, except when a task is opened or changed.

/** Timeout of a request, after which the server counts as unreachable. */
const TIMEOUT_MS = 15_000;
/** Timeout of a bulk action: each task takes at least one request to the bucket. */
const BULK_TIMEOUT_MS = 300_000;
const TOKEN = 'leasehold.token';

/** Error response. Status 0: the server did not respond. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Reads a token from the address and removes it there, so that it is neither bookmarked nor shared. */
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, '', location.pathname);
  const token = plain(found[1]);
  if (isToken(token)) setToken(token);
}

/** Decodes percent-encoding; returns text that is not percent-encoded unchanged. */
function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** True if a header can carry the text: anything else cannot be a token. */
export const isToken = (text) => /^[!-~]+$/.test(text);

/** Stores the token for this tab only. */
export const setToken = (token) => sessionStorage.setItem(TOKEN, token);
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Fetches the overview, or `null` if it has not changed since `revision`. */
export async function overview(revision) {
  const headers = revision === undefined ? {} : { 'if-none-match': `"${revision}"` };
  const answer = await ask('/api/overview', { headers });
  return answer.status === 304 ? null : answer.json();
}

export const tasks = async (params) => (await ask(`/api/tasks?${params}`)).json();
export const task = async (id) => exact(await (await ask(`/api/tasks/${encodeURIComponent(id)}`)).text());
export const list = async (what) => (await ask(`/api/${what}`)).json();

/** Changes one task: cancel, retry, run_now. */
export const act = async (id, action) => post(`/api/tasks/${encodeURIComponent(id)}/${action}`);
/** Changes all tasks that match a filter. */
export const actOnAll = async (action, filter) => post(`/api/tasks/${action}`, filter, BULK_TIMEOUT_MS);

async function post(path, body, timeoutMs) {
  const headers = { 'x-leasehold': '1', ...(body && { 'content-type': 'application/json' }) };
  return (await ask(path, { method: 'POST', headers, body: body && JSON.stringify(body), timeoutMs })).json();
}

async function ask(path, { method = 'GET', headers = {}, body, timeoutMs = TIMEOUT_MS } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  let answer;
  try {
    const signal = AbortSignal.timeout(timeoutMs);
    answer = await fetch(path, { method, headers: { ...headers, ...authorization }, body, signal, cache: 'no-store' });
  } catch {
    throw new ApiError(0, 'the dashboard server is not responding');
  }
  if (answer.ok || answer.status === 304) return answer;
  throw new ApiError(answer.status, await reason(answer));
}

async function reason(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `the dashboard server returned status ${answer.status}`;
  }
}

/** Parses JSON and keeps integers that JavaScript cannot represent as written, where the browser supports that. */
function exact(text) {
  return JSON.parse(text, (_, value, context) => {
    const isRounded = typeof value === 'number' && context?.source !== undefined && !Number.isSafeInteger(value)
      && /^-?\d+$/.test(context.source);
    return isRounded && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  });
}
