// Builds elements and patches the page to match them.
//
// A view renders itself again with every sample. `patch` applies only the differences, so that focus, selected text, scroll
// positions and opened details are kept. Data from tasks is inserted as a text node or as the value of an attribute that
// executes nothing: no function here parses HTML, and links stay within the page.

const SVG = 'http://www.w3.org/2000/svg';
const HANDLERS = ['onclick', 'onchange', 'oninput', 'onkeydown', 'onsubmit', 'onpointermove', 'onpointerleave', 'onblur'];
const ATTRIBUTE = /^(class|id|for|type|name|value|placeholder|title|role|tabindex|datetime|rel|open|disabled|selected|hidden|lang|colspan|scope|method|autocomplete|autocapitalize|spellcheck|inputmode|enterkeyhint|maxlength|max|(aria|data)-[a-z-]+)$/;

/** Creates an HTML element: `h('p', {class: 'soft'}, 'text', child, …)`. Children that are `undefined`, `false` or `null` are omitted. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'key') element.patchKey = String(value);
    else if (HANDLERS.includes(name)) element[name] = value;
    else if (name === 'href' && String(value).startsWith('#')) element.setAttribute(name, value);
    else if (ATTRIBUTE.test(name)) element.setAttribute(name, value === true ? '' : value);
    else throw new Error(`attribute ${name} is not allowed`);
  }
  return appendChildren(element, children);
}

/** Creates an SVG element. Geometry goes into attributes, because the page allows no inline styles. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  return appendChildren(element, children);
}

function appendChildren(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === '') continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces the children of an element, patching those that match. */
export function show(element, ...children) {
  patchChildren(element, appendChildren(document.createDocumentFragment(), children));
}

/** Patches an element to match a fresh one, or replaces it; returns the element that is on the page. */
export function patch(old, fresh) {
  if (!isSame(old, fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  patchAttributes(old, fresh);
  patchChildren(old, fresh);
  // Text being typed is kept, except in a field that mirrors a part of the address: the address is updated with every letter.
  const isTyped = old === document.activeElement && fresh.dataset.follows !== 'address';
  if ('value' in fresh && !isTyped && old.value !== fresh.value) old.value = fresh.value;
  return old;
}

const isSame = (a, b) => a.nodeName === b.nodeName && a.patchKey === b.patchKey;

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // The user decides which details are open.
    if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== 'open') old.setAttribute(name, value);
  }
  for (const name of HANDLERS) {
    if (old[name] !== fresh[name]) old[name] = fresh[name];
  }
}

/** Matches children with a key by that key, the others by position. */
function patchChildren(old, fresh) {
  const children = [...fresh.childNodes];
  const wanted = new Set(children.map((child) => child.patchKey).filter((key) => key !== undefined));
  const keyed = new Map();
  for (const child of [...old.childNodes]) {
    if (child.patchKey === undefined) continue;
    if (wanted.has(child.patchKey)) keyed.set(child.patchKey, child);
    else child.remove();
  }
  let place = old.firstChild;
  for (const child of children) {
    const known = child.patchKey === undefined ? place : keyed.get(child.patchKey);
    if (!known || !isSame(known, child)) {
      old.insertBefore(child, place);
      continue;
    }
    if (known === place) place = place.nextSibling;
    else old.insertBefore(known, place);
    patch(known, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
