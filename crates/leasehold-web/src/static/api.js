// What the server is asked for. Every answer comes from its memory, apart from opening a task and changing one.

/** How long an answer may take before the server counts as gone. */
const PATIENCE_MS = 15_000;
/** The same for a change of many tasks, each of which takes a bucket its time. */
const MANY_PATIENCE_MS = 300_000;
const TOKEN = 'leasehold.token';

/** An answer that is not the one hoped for. Status 0: there was none. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** A token in the address is taken over and removed from it, so that it is neither bookmarked nor sent around. */
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, '', location.pathname);
  const token = plain(found[1]);
  if (isToken(token)) setToken(token);
}

/** What is not percent-encoded is taken as it is. */
function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Whether a header can carry it: anything else cannot be the token. */
export const isToken = (text) => /^[!-~]+$/.test(text);

/** Kept for this tab alone. */
export const setToken = (token) => sessionStorage.setItem(TOKEN, token);
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** The overview, or nothing if it has not changed since `revision`. */
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
/** Changes all tasks that fit a filter. */
export const actOnAll = async (action, filter) => post(`/api/tasks/${action}`, filter, MANY_PATIENCE_MS);

async function post(path, body, patience) {
  const headers = { 'x-leasehold': '1', ...(body && { 'content-type': 'application/json' }) };
  return (await ask(path, { method: 'POST', headers, body: body && JSON.stringify(body), patience })).json();
}

async function ask(path, { method = 'GET', headers = {}, body, patience = PATIENCE_MS } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  let answer;
  try {
    const signal = AbortSignal.timeout(patience);
    answer = await fetch(path, { method, headers: { ...headers, ...authorization }, body, signal, cache: 'no-store' });
  } catch {
    throw new Refused(0, 'the dashboard does not answer');
  }
  if (answer.ok || answer.status === 304) return answer;
  throw new Refused(answer.status, await reason(answer));
}

async function reason(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `the dashboard answers ${answer.status}`;
  }
}

/** Numbers that JavaScript cannot hold stay as they were written, where the browser can do that. */
function exact(text) {
  return JSON.parse(text, (_, value, context) => {
    const isRounded = typeof value === 'number' && context?.source !== undefined && !Number.isSafeInteger(value)
      && /^-?\d+$/.test(context.source);
    return isRounded && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  });
}
