// Builds elements and brings what is on the page in line with them.
//
// A view draws itself anew with every sample. `patch` carries over only what differs, so that focus, selected text, scroll
// positions and opened details stay as they are. Whatever comes from a task goes in as a text node or as the value of an
// attribute that runs nothing: no function here parses HTML, and links lead nowhere but within the page.

const SVG = 'http://www.w3.org/2000/svg';
const HANDLERS = ['onclick', 'onchange', 'oninput', 'onkeydown', 'onsubmit', 'onpointermove', 'onpointerleave', 'onblur'];
const ATTRIBUTE = /^(class|id|for|type|name|value|placeholder|title|role|tabindex|datetime|rel|open|disabled|selected|hidden|lang|colspan|scope|method|autocomplete|autocapitalize|spellcheck|inputmode|enterkeyhint|maxlength|max|(aria|data)-[a-z-]+)$/;

/** An HTML element: `h('p', {class: 'soft'}, 'text', child, …)`. Nothing, `false` and `null` among the children are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'key') element.patchKey = String(value);
    else if (HANDLERS.includes(name)) element[name] = value;
    else if (name === 'href' && String(value).startsWith('#')) element.setAttribute(name, value);
    else if (ATTRIBUTE.test(name)) element.setAttribute(name, value === true ? '' : value);
    else throw new Error(`the attribute ${name} is not for this page`);
  }
  return filled(element, children);
}

/** An SVG element. Geometry goes into attributes, because the page allows no inline styles. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  return filled(element, children);
}

function filled(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === '') continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Makes the children of an element what is given. */
export function show(element, ...children) {
  patchChildren(element, filled(document.createDocumentFragment(), children));
}

/** Brings an element in line with a fresh one, or puts that in its place; returns the one that is on the page. */
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
  // What is being typed stays, but for a field that shows a part of the address: the address has every letter at once.
  const isTyped = old === document.activeElement && fresh.dataset.follows !== 'address';
  if ('value' in fresh && !isTyped && old.value !== fresh.value) old.value = fresh.value;
  return old;
}

const isSame = (a, b) => a.nodeName === b.nodeName && a.patchKey === b.patchKey;

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // Whether details are open is up to the reader.
    if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== 'open') old.setAttribute(name, value);
  }
  for (const name of HANDLERS) {
    if (old[name] !== fresh[name]) old[name] = fresh[name];
  }
}

/** Children with a key are found again wherever they went; the others by their place. */
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
