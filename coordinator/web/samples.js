// Grids of samples: a slider over the rounds, the newest by itself, a click enlarges.
import {$, setText, number, plural, clock} from './util.js';

let job = null;
let list = [];
let follow = true; // the slider stays at the newest until someone moves it

function show() {
  const s = list[Number($('slider').value)];
  if (!s) return;
  const url = `/v1/blobs/${s.blob}`;
  const alt = `Grid of ${s.count} samples after ${plural(s.round, 'round')}`;
  for (const id of ['picture', 'dialog-picture']) {
    if ($(id).getAttribute('src') !== url) $(id).src = url;
    $(id).alt = alt;
  }
  setText($('caption'), `after ${plural(s.round, 'round')} · ${plural(s.count, 'sample')} · ${clock(s.at)}`
    + (list.length > 1 ? ` · ${number(Number($('slider').value) + 1)} of ${number(list.length)}` : ''));
  setText($('dialog-caption'), alt);
}

export function draw(id, samples, empty) {
  if (id !== job) follow = true;
  job = id;
  list = samples;
  $('samples').hidden = !list.length;
  $('samples-empty').hidden = list.length > 0;
  setText($('samples-empty'), empty);
  const slider = $('slider');
  slider.max = Math.max(0, list.length - 1);
  slider.closest('label').hidden = list.length < 2;
  if (follow) slider.value = slider.max;
  slider.setAttribute('aria-valuetext', list.length ? `round ${list[Number(slider.value)].round}` : '');
  show();
}

export function start() {
  $('slider').addEventListener('input', () => {
    follow = Number($('slider').value) === list.length - 1;
    show();
  });
  $('enlarge').addEventListener('click', () => $('dialog').showModal());
  $('dialog').addEventListener('click', (e) => {
    if (e.target === $('dialog')) $('dialog').close();
  });
}
