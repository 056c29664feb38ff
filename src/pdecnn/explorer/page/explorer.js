// The page: what is chosen, what is asked of the server, what is shown.

import { drawBars, drawCurves, tidy } from "./charts.js";
import { clippedWords, drawChannels, drawInput, makeScale } from "./pictures.js";

const MILLISECONDS_A_FRAME = 600;
const at = (id) => document.getElementById(id);

let subject, shown, noise, frame, reversal, timer;

function say(text) {
  at("message").textContent = text ?? "";
  at("message").hidden = !text;
}

async function ask(path, query, options) {
  let response;
  try {
    response = await fetch(query ? `${path}?${new URLSearchParams(query)}` : path, options);
  } catch {
    throw new Error("The server does not answer; has `pdecnn explore` ended?");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Ask one question at a time; of those that come meanwhile only the last matters.
function latest(work) {
  let waiting, busy = false;
  return async (...wanted) => {
    waiting = wanted;
    if (busy) return;
    busy = true;
    while (waiting) {
      const now = waiting;
      waiting = null;
      try {
        await work(...now);
      } catch (error) {
        say(error.message);
      }
    }
    busy = false;
  };
}

// Where the slider stands: every block has its steps and its start.
function moment() {
  let index = Number(at("time").value);
  for (let block = 0; ; block++) {
    const frames = subject.blocks[block].num_steps + 1;
    if (index < frames) return { block, step: index };
    index -= frames;
  }
}

const view = () => document.querySelector("input[name=view]:checked").value;
const amount = () => Number(at("noise").value);
const times = () => subject.blocks.map((block) => block.times);

const loadFrame = latest(async () => {
  if (!shown) return;
  const query = { sample: shown.sample, ...moment(), view: view(), amount: amount() };
  frame = await ask("frame", query);
  showFrame();
});

const loadNoise = latest(async () => {
  if (!shown) return;
  noise = await ask("noise", { sample: shown.sample, amount: amount() });
  showNoise();
  if (view() !== "clean") loadFrame();
});

const loadReversal = latest(async () => {
  if (!shown) return;
  at("reverse").disabled = true;
  try {
    reversal = await ask("reverse", { sample: shown.sample, block: moment().block });
    showReversal();
  } finally {
    at("reverse").disabled = false;
  }
});

const loadSample = latest(async (sample) => {
  shown = await ask("sample", { sample });
  noise = null;
  say();
  showSample();
  await Promise.all([loadFrame(), loadNoise()]);
  if (reversal) await loadReversal();
  document.body.setAttribute("aria-busy", "false");
});

function figure(title, picture, kind) {
  const made = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  name.textContent = title;
  caption.append(name, makeScale(picture));
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${kind}: ${title}, ${picture.shape[0]} channels`);
  made.append(caption, canvas);
  return made;
}

function showFigures(place, pictures, kind, columns = 1) {
  place.replaceChildren(...pictures.map(([title, picture]) => figure(title, picture, kind)));
  place.querySelectorAll("figure > canvas").forEach((canvas, k) => drawChannels(canvas, pictures[k][1], columns));
}

const TITLES = { clean: "", noisy: ", with noise", difference: ": with noise minus without" };

function showFrame() {
  const pictures = frame.components.map((part) => [`${part.name}${TITLES[view()]}`, part]);
  showFigures(at("components"), pictures, `block ${frame.block}, step ${frame.step}`);
  at("components").dataset.frame = `${frame.block}-${frame.step}`;
}

function showMoment() {
  const { block, step } = moment();
  const { num_steps, times } = subject.blocks[block];
  const size = shown?.blocks[block].size.join(" × ");
  const text = `Block ${block}, step ${step} of ${num_steps}, time t = ${tidy(times[step])}`;
  const slice = subject.dimension === 3 ? ", of which the middle slice is shown" : "";
  at("moment").textContent = size ? `${text}; ${size} points a channel${slice}` : text;
  at("time").setAttribute("aria-valuetext", text);
  at("segments").querySelectorAll("span").forEach((part, k) => part.classList.toggle("now", k === block));
  at("reverse").textContent = `Reverse block ${block}`;
  if (shown) showCurves();
}

const shares = (values) => values.map((value) => (value === null || !values[0] ? null : value / values[0]));

function showCurves() {
  const { block, step } = moment();
  const cursor = Number(at("time").value);
  const here = shown.blocks[block];
  const series = [{ kind: "norm", groups: shown.blocks.map((one) => shares(one.norms)) }];
  const hasEnergy = shown.blocks.every((one) => one.energy);
  if (hasEnergy) series.push({ kind: "energy", groups: shown.blocks.map((one) => shares(one.energy)) });
  at("energy-key").hidden = !hasEnergy;
  drawCurves(at("norm-chart"), series, times(), cursor, "share of the start");
  const since = (values) => `${tidy(values[step])} (× ${tidy(shares(values)[step])} since the block began)`;
  const norm = at("norm-key").textContent;
  at("norm-caption").textContent = hasEnergy
    ? `Here ${norm} = ${since(here.norms)}, energy ${since(here.energy)}. ${here.energy_note}`
    : `Here ${norm} = ${since(here.norms)}. ${here.energy_note}`;
  if (!noise) return;
  const groups = noise.blocks.map((one) => shares(one.distances));
  const relative = noise.blocks.map((one) => shares(one.relative));
  const both = [{ kind: "distance", groups }, { kind: "relative", groups: relative }];
  drawCurves(at("distance-chart"), both, times(), cursor, "share of the start");
  const apart = noise.blocks[block];
  const grown = (name) => noise.blocks.map((one, k) => `×\u00a0${tidy(one[name])} in block ${k}`).join(", ");
  at("distance-caption").textContent = noise.amount === 0
    ? "Without noise both are the same; move the noise slider."
    : `Here ${tidy(apart.distances[step])}, that is ${tidy(100 * apart.relative[step])} % of ${norm}. Growth of the distance from start to end: ${grown("growth")}. Relative to ${norm}: ${grown("relative_growth")}.`;
}

function showAmount() {
  at("noise-value").textContent = `${Math.round(100 * amount())} % of the input’s spread`;
}

function showNoise() {
  showAmount();
  drawInput(at("noisy-input"), noise.picture);
  at("noisy-caption").textContent = ["with noise", clippedWords(noise.picture)].filter(Boolean).join(", ");
  drawBars(at("bars"), subject.class_names, shown.probabilities, noise.probabilities, shown.label);
  showCurves();
}

function showSample() {
  const best = subject.class_names[shown.probabilities.indexOf(Math.max(...shown.probabilities))];
  drawInput(at("clean-input"), shown.picture);
  at("clean-caption").textContent = shown.label === null ? "input" : `input, class ${shown.label}`;
  at("clean-input").setAttribute("aria-label", `the input, taken for ${best}`);
  drawBars(at("bars"), subject.class_names, shown.probabilities, null, shown.label);
  if (/^\d+$/.test(shown.sample)) at("number").value = shown.sample;
  at("examples").querySelectorAll("button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.sample === shown.sample)));
  showMoment();
}

function showReversal() {
  const { expected, recovered, difference, channels, block } = reversal;
  const error = reversal.error === null ? "beyond all bounds" : reversal.error === 0 ? "0, bit for bit" : tidy(reversal.error);
  const some = expected.shape[0] < channels ? ` The first ${expected.shape[0]} of ${channels} channels are shown.` : "";
  at("reverse-text").textContent = reversal.reversible
    ? `Block ${block}, run backwards from its last state alone, gives its input back. Relative error: ${error}.${some}`
    : `${reversal.reason} Tried all the same, with time steps of −Δt, it misses its input by a relative error of ${error}.${some}`;
  at("reverse-text").dataset.error = String(reversal.error);
  at("reversal").hidden = false;
  const pictures = [
    ["original input", expected],
    [reversal.reversible ? "recovered" : "tried", recovered],
    ["their difference", difference],
  ];
  showFigures(at("reversal"), pictures, `block ${block} backwards`, subject.dimension === 1 ? 2 : 4);
}

function choose(sample) {
  loadSample(sample);
}

async function upload(file) {
  say();
  try {
    if (!subject.takes_images) {
      throw new Error("This network takes no image files; pick one of the test samples.");
    }
    if (file.size > subject.max_upload_bytes) {
      throw new Error(`${file.name} is larger than ${subject.max_upload_bytes / 2 ** 20} MiB; reduce it first.`);
    }
    const { sample } = await ask("upload", null, { method: "POST", body: await file.arrayBuffer() });
    choose(sample);
  } catch (error) {
    say(`${file.name}: ${error.message}`);
  }
}

function play(on) {
  clearInterval(timer);
  timer = on
    ? setInterval(() => {
        const slider = at("time");
        slider.value = (Number(slider.value) + 1) % (Number(slider.max) + 1);
        moved();
      }, MILLISECONDS_A_FRAME)
    : null;
  at("play").textContent = on ? "Pause" : "Play";
  at("play").setAttribute("aria-pressed", String(on));
}

function moved() {
  showMoment();
  loadFrame();
  if (reversal && reversal.block !== moment().block) loadReversal();
}

function redraw() {
  if (shown) showSample();
  if (noise) showNoise();
  if (frame) showFrame();
  if (reversal) showReversal();
  at("examples").querySelectorAll("canvas").forEach((canvas, k) => drawInput(canvas, subject.examples[k].picture));
}

function listen() {
  at("time").addEventListener("input", () => { play(false); moved(); });
  at("play").addEventListener("click", () => play(!timer));
  at("noise").addEventListener("input", () => {
    showAmount();
    loadNoise();
  });
  document.querySelectorAll("input[name=view]").forEach((input) => input.addEventListener("change", loadFrame));
  at("number").addEventListener("change", () => choose(at("number").value));
  at("file").addEventListener("change", () => { if (at("file").files[0]) upload(at("file").files[0]); at("file").value = ""; });
  at("reverse").addEventListener("click", loadReversal);
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  }
  for (const kind of ["dragleave", "drop"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); document.body.classList.remove("dragging"); });
  }
  document.addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
}

function showSubject() {
  document.title = `${subject.name} - pdecnn explorer`;
  at("name").textContent = `${subject.name}: ${subject.blocks.length} blocks, ${subject.num_weights.toLocaleString("en")} weights`;
  at("equation").textContent = subject.equation;
  const noisy = subject.symbol.replace(/[YZ]/g, "$&\u0303");
  at("norm-key").textContent = at("relative-key").textContent = `|${subject.symbol}|`;
  at("distance-key").textContent = `|${subject.symbol} − ${noisy}|`;
  at("notice").textContent = subject.notice ?? "";
  at("notice").hidden = !subject.notice;
  at("drop").hidden = !subject.takes_images;
  at("pick").hidden = !subject.has_test;
  at("number").max = subject.num_samples - 1;
  at("count").textContent = `of 0 to ${subject.num_samples - 1}`;
  at("time").max = times().flat().length - 1;
  at("segments").replaceChildren(
    ...subject.blocks.map(({ num_steps }, k) => {
      const part = document.createElement("span");
      part.textContent = `block ${k}`;
      part.style.flexGrow = num_steps + 1;
      part.style.flexBasis = 0;
      return part;
    }),
  );
  at("examples").replaceChildren(
    ...subject.examples.map(({ sample, label }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.sample = sample;
      button.title = label ?? `sample ${sample}`;
      button.setAttribute("aria-label", button.title);
      button.append(document.createElement("canvas"));
      button.addEventListener("click", () => choose(sample));
      return button;
    }),
  );
  redraw();
}

try {
  subject = await ask("describe");
  listen();
  showSubject();
  showMoment();
  choose(subject.examples[0].sample);
} catch (error) {
  say(error.message);
}
