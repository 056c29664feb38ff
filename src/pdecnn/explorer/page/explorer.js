// The page: what is chosen, what is asked, what is shown of each network.

import { drawBars, drawCurves, tidy } from "./charts.js";
import { clippedWords, drawChannels, drawInput, makeScale } from "./pictures.js";

const MILLISECONDS_A_FRAME = 600;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const at = (id) => document.getElementById(id);

let page, shown, recorded, timer, playing = 0, reversing = false;
const networks = [];

function say(text) {
  at("message").textContent = text ?? "";
  at("message").hidden = !text;
}

// In a file of its own the page holds all answers.
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function ask(path, query, options) {
  if (recorded) {
    const fields = Object.entries(query ?? {}).map(([name, value]) => `${name}=${value}`);
    return recorded[fields.length ? `${path}?${fields.sort().join("&")}` : path];
  }
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

const view = () => document.querySelector("input[name=view]:checked").value;
const amount = () => Number(at("noise").value);
const slider = () => Number(at("time").value);

function figure(title, picture, kind) {
  const made = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  const some = picture.channels > picture.shape[0] ? `, the first ${picture.shape[0]} of ${picture.channels} channels` : "";
  name.textContent = title + some;
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
const shares = (values) => values.map((value) => (value === null || !values[0] ? null : value / values[0]));

// One network: its place on the page and what is shown there.
class Network {
  constructor(index, facts) {
    Object.assign(this, { index, facts, sample: null, noise: null, frame: null, reversal: null });
    this.times = facts.blocks.map((block) => block.times);
    this.frames = this.times.flat().length;
    const made = at("network").content.cloneNode(true);
    // The first network has the plain names, so that a page of one reads simply.
    made.querySelectorAll("[id]").forEach((one) => { if (index) one.id += `-${index}`; });
    made.querySelectorAll(".of").forEach((one) => { one.textContent = `of ${facts.name}`; });
    at("networks").append(made);
    const noisy = facts.symbol.replace(/[YZ]/g, "$&\u0303");
    this.at("name").textContent = `${facts.name}: ${facts.blocks.length} blocks, ${facts.num_weights.toLocaleString("en")} weights`;
    this.at("equation").textContent = facts.equation;
    this.at("formula").textContent = facts.formula ?? "";
    this.at("norm-key").textContent = this.at("relative-key").textContent = `|${facts.symbol}|`;
    this.at("distance-key").textContent = `|${facts.symbol} − ${noisy}|`;
    this.loadFrame = latest(() => this.#loadFrame());
    this.loadNoise = latest(() => this.#loadNoise());
    this.loadReversal = latest(() => this.#loadReversal());
  }

  at(id) {
    return at(this.index ? `${id}-${this.index}` : id);
  }

  // Where it is when the slider stands there: networks of other steps keep the same share of the way.
  get cursor() {
    const last = Number(at("time").max);
    return last ? Math.round((slider() / last) * (this.frames - 1)) : 0;
  }

  get moment() {
    let index = this.cursor;
    for (let block = 0; ; block++) {
      if (index < this.times[block].length) return { block, step: index };
      index -= this.times[block].length;
    }
  }

  words() {
    const { block, step } = this.moment;
    const { num_steps, times } = this.facts.blocks[block];
    return `Block ${block}, step ${step} of ${num_steps}, time t = ${tidy(times[step])}`;
  }

  ask(path, query) {
    return ask(path, { network: this.index, sample: shown, ...query });
  }

  async load() {
    this.sample = await this.ask("sample", {});
    this.noise = null;
    this.reversal = null;
  }

  async #loadFrame() {
    if (!this.sample) return;
    this.frame = await this.ask("frame", { ...this.moment, view: view(), amount: amount() });
    this.showFrame();
  }

  async #loadNoise() {
    if (!this.sample) return;
    this.noise = await this.ask("noise", { amount: amount() });
    this.showNoise();
    if (view() !== "clean") this.loadFrame();
  }

  async #loadReversal() {
    if (!this.sample || !reversing) return;
    this.reversal = await this.ask("reverse", this.moment);
    this.showReversal();
  }

  showMoment() {
    const { block } = this.moment;
    const size = this.sample?.blocks[block].size.join(" × ");
    const slice = page.dimension === 3 ? ", of which the middle slice is shown" : "";
    const text = size ? `${this.words()}; ${size} points a channel${slice}` : this.words();
    if (this.index === 0) at("moment").textContent = text;
    // Of another network only where it is somewhere else.
    this.at("where").textContent = text;
    this.at("where").hidden = text === at("moment").textContent;
    if (!this.sample) return;
    this.showDiagram();
    this.showCurves();
  }

  // What the network is made of, the block filled as far as the picture has come.
  showDiagram() {
    const { block, step } = this.moment;
    const { facts, sample } = this;
    const station = (name, ...lines) => {
      const made = document.createElement("li");
      const title = document.createElement("strong");
      title.textContent = name;
      made.append(title, ...lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
      return made;
    };
    const blocks = facts.blocks.map(({ title, num_steps, times }, k) => {
      const { channels, size } = sample.blocks[k];
      const steps = `${num_steps} ${num_steps === 1 ? "step" : "steps"} to T = ${tidy(times.at(-1))}`;
      const made = station(`block ${k}`, `${channels} × ${size.join(" × ")}`, steps, title);
      const share = k < block ? 1 : k > block ? 0 : step / num_steps;
      made.style.setProperty("--share", `${100 * share}%`);
      if (k === block) made.setAttribute("aria-current", "step");
      return made;
    });
    const points = sample.size.join(" × ");
    const input = station("input", `${facts.in_channels} × ${points}`);
    const outputs = facts.class_names.length;
    const output = station(facts.output, sample.answer ? `${outputs} × ${points}` : String(outputs));
    this.at("diagram").replaceChildren(input, ...blocks, output);
  }

  showFrame() {
    const { block, step, components } = this.frame;
    const pictures = components.map((part) => [`${part.name}${TITLES[view()]}`, part]);
    showFigures(this.at("components"), pictures, `block ${block}, step ${step}`);
    this.at("components").dataset.frame = `${block}-${step}`;
  }

  showCurves() {
    const { block, step } = this.moment;
    const blocks = this.sample.blocks;
    const here = blocks[block];
    const of = (kind, name) => ({ kind, groups: blocks.map((one) => shares(one[name])) });
    const series = [of("norm", "norms"), of("rough", "roughness")];
    const hasEnergy = blocks.every((one) => one.energy);
    if (hasEnergy) series.push(of("energy", "energy"));
    this.at("energy-key").hidden = !hasEnergy;
    drawCurves(this.at("norm-chart"), series, this.times, this.cursor, "share of the start");
    const since = (values) => `${tidy(values[step])} (× ${tidy(shares(values)[step])} since the block began)`;
    const norm = this.at("norm-key").textContent;
    const energy = hasEnergy ? `, energy ${since(here.energy)}` : "";
    this.at("norm-caption").textContent =
      `Here ${norm} = ${since(here.norms)}${energy}, roughness ${since(here.roughness)}. ${(hasEnergy ? here : blocks.find((one) => !one.energy)).energy_note}`;
    if (!this.noise) return;
    const apart = this.noise.blocks;
    const both = ["distance", "relative"].map((kind, k) =>
      ({ kind, groups: apart.map((one) => shares(one[["distances", "relative"][k]])) }));
    drawCurves(this.at("distance-chart"), both, this.times, this.cursor, "share of the start");
    const grown = (name) => apart.map((one, k) => `×\u00a0${tidy(one[name])} in block ${k}`).join(", ");
    const proved = this.facts.never_expands ? " It can never grow: the steps are stable (Theorem 1)." : "";
    this.at("distance-caption").textContent = this.noise.amount === 0
      ? "Without noise both are the same; move the noise slider."
      : `Here ${tidy(apart[block].distances[step])}, that is ${tidy(100 * apart[block].relative[step])} % of ${norm}. Growth of the distance from start to end: ${grown("growth")}.${proved} Relative to ${norm}: ${grown("relative_growth")}.`;
  }

  showBars() {
    const { probabilities, label, answer } = this.sample;
    this.at("prediction").hidden = !probabilities && !answer;
    this.at("bars").hidden = this.at("bars-key").hidden = !probabilities;
    if (probabilities) drawBars(this.at("bars"), this.facts.class_names, probabilities, this.noise?.probabilities, label);
    this.showField();
  }

  // Where each pixel has an answer: that of the input and of the input with noise, and the wanted one.
  showField() {
    const { answer, wanted } = this.sample;
    const pictures = [
      ["what it makes of the input", answer],
      ["of the input with noise", this.noise?.answer],
      ["the classes that are meant", wanted],
    ].filter(([, picture]) => picture);
    this.at("field").hidden = !answer;
    this.at("field").replaceChildren(...pictures.map(([title]) => {
      const made = document.createElement("figure");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", title);
      const caption = document.createElement("figcaption");
      caption.textContent = title;
      made.append(canvas, caption);
      return made;
    }));
    this.at("field").querySelectorAll("canvas").forEach((canvas, k) => drawInput(canvas, pictures[k][1]));
  }

  showNoise() {
    if (this.index === 0) {
      drawInput(at("noisy-input"), this.noise.picture);
      at("noisy-caption").textContent = ["with noise", clippedWords(this.noise.picture)].filter(Boolean).join(", ");
    }
    this.showBars();
    this.showCurves();
  }

  showReversal() {
    const { expected, recovered, difference, channels, block, step, errors, reversible, reason } = this.reversal;
    const error = errors[step] === null ? "beyond all bounds" : errors[step] === 0 ? "0, bit for bit" : tidy(errors[step]);
    const some = expected.shape[0] < channels ? ` The first ${expected.shape[0]} of ${channels} channels are shown.` : "";
    const text = step > 0
      ? `Block ${block} on its way back, at step ${step} of ${errors.length - 1}. Relative error: ${error}.`
      : reversible
        ? `Block ${block}, run backwards from its last state alone, gives its input back. Relative error: ${error}.`
        : `${reason} Tried all the same, with time steps of −Δt, it misses its input by a relative error of ${error}.`;
    this.at("back").hidden = false;
    this.at("reverse-text").textContent = text + some;
    this.at("reverse-text").dataset.error = String(errors[step]);
    this.at("reverse-text").dataset.step = `${block}-${step}`;
    const groups = [errors.map((one, j) => (j >= step ? one : null))];
    drawCurves(this.at("error-chart"), [{ kind: "error", groups }], [this.times[block]], step, "", block);
    const pictures = [
      ["on the way out", expected],
      ["on the way back", recovered],
      ["their difference", difference],
    ];
    showFigures(this.at("reversal"), pictures, `block ${block} backwards`, page.dimension === 1 ? 2 : 4);
  }

  show() {
    if (this.sample) this.showBars();
    if (this.frame) this.showFrame();
    if (this.noise) this.showNoise();
    if (this.reversal) this.showReversal();
    this.showMoment();
  }
}

const loadSample = latest(async (sample) => {
  const before = shown;
  shown = sample;
  try {
    for (const network of networks) await network.load();
  } catch (error) {
    shown = before;
    throw error;
  }
  say();
  showSample();
  await Promise.all(networks.flatMap((network) => [network.loadFrame(), network.loadNoise(), network.loadReversal()]));
  document.body.setAttribute("aria-busy", "false");
});

function showMoment() {
  networks.forEach((network) => network.showMoment());
  const { block } = networks[0].moment;
  at("time").setAttribute("aria-valuetext", networks[0].words());
  at("segments").querySelectorAll("span").forEach((part, k) => part.classList.toggle("now", k === block));
}

function showAmount() {
  at("noise-value").textContent = `${Math.round(100 * amount())} % of the input’s spread`;
}

function showSample() {
  const { picture, label } = networks[0].sample;
  drawInput(at("clean-input"), picture);
  at("clean-caption").textContent = label === null ? "input" : `input, class ${label}`;
  if (/^\d+$/.test(shown)) at("number").value = shown;
  at("examples").querySelectorAll("button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.sample === shown)));
  networks.forEach((network) => network.showBars());
  showMoment();
}

async function upload(file) {
  say();
  try {
    if (recorded) throw new Error("This file holds its own pictures only; run `pdecnn explore` for others.");
    if (!page.takes_images) {
      throw new Error("This network takes no image files; pick one of the test samples.");
    }
    if (file.size > page.max_upload_bytes) {
      throw new Error(`${file.name} is larger than ${page.max_upload_bytes / 2 ** 20} MiB; reduce it first.`);
    }
    const { sample } = await ask("upload", null, { method: "POST", body: await file.arrayBuffer() });
    loadSample(sample);
  } catch (error) {
    say(`${file.name}: ${error.message}`);
  }
}

// Time: forwards through all blocks, backwards through one.

function go(place) {
  at("time").value = place;
  return moved();
}

function moved() {
  showMoment();
  return Promise.all(networks.flatMap((network) => [network.loadFrame(), network.loadReversal()]));
}

// The first and the last place of the block that the slider is in.
function ends() {
  const { block } = networks[0].moment;
  const lengths = networks[0].times.map((times) => times.length);
  const first = lengths.slice(0, block).reduce((sum, length) => sum + length, 0);
  const scale = Number(at("time").max) / Math.max(networks[0].frames - 1, 1);
  return [Math.round(first * scale), Math.round((first + lengths[block] - 1) * scale)];
}

function play(direction) {
  clearTimeout(timer);
  playing = direction;
  for (const [id, way, word] of [["play", 1, "Play"], ["reverse", -1, "Reverse"]]) {
    at(id).textContent = playing === way ? "Pause" : word;
    at(id).setAttribute("aria-pressed", String(playing === way));
  }
  if (playing) timer = setTimeout(tick, MILLISECONDS_A_FRAME);
}

// Every frame is shown before its time begins, however long the server takes.
async function tick() {
  const [first] = ends();
  const next = slider() + playing;
  const turn = timer;
  await go(playing > 0 ? next % (Number(at("time").max) + 1) : Math.max(next, first));
  if (turn === timer) play(playing < 0 && slider() === first ? 0 : playing);
}

// Without motion at once to where it would end: the end of time, or the beginning of the block.
async function toggle(direction) {
  if (playing) {
    play(0);
    return;
  }
  const [first, end] = ends();
  if (direction < 0) reversing = true;
  if (still.matches) {
    go(direction > 0 ? at("time").max : first);
    return;
  }
  play(direction);
  if (direction > 0) return;
  clearTimeout(timer);
  await go(end);
  if (playing < 0) play(direction);
}

function pressed(event) {
  const control = event.target.closest?.("button, input, a, summary");
  const inSlider = control?.type === "range";
  if (event.key === " " && (!control || inSlider)) {
    event.preventDefault();
    toggle(1);
  } else if (["ArrowLeft", "ArrowRight"].includes(event.key) && (!control || control.matches("button"))) {
    event.preventDefault();
    play(0);
    const next = slider() + (event.key === "ArrowRight" ? 1 : -1);
    go(Math.min(Math.max(next, 0), Number(at("time").max)));
  }
}

function redraw() {
  networks.forEach((network) => network.show());
  if (networks[0].sample) showSample();
  at("examples").querySelectorAll("canvas").forEach((canvas, k) => drawInput(canvas, page.examples[k].picture));
}

function listen() {
  at("time").addEventListener("input", () => { play(0); moved(); });
  at("play").addEventListener("click", () => toggle(1));
  at("reverse").addEventListener("click", () => toggle(-1));
  document.addEventListener("keydown", pressed);
  at("noise").addEventListener("input", () => {
    showAmount();
    networks.forEach((network) => network.loadNoise());
  });
  document.querySelectorAll("input[name=view]").forEach((input) =>
    input.addEventListener("change", () => networks.forEach((network) => network.loadFrame())));
  at("number").addEventListener("change", () => loadSample(at("number").value));
  at("file").addEventListener("change", () => { if (at("file").files[0]) upload(at("file").files[0]); at("file").value = ""; });
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  }
  for (const kind of ["dragleave", "drop"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); document.body.classList.remove("dragging"); });
  }
  document.addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]); });
  for (const looks of ["(prefers-color-scheme: dark)", "print"]) matchMedia(looks).addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
}

function showPage() {
  document.title = `${page.networks.map(({ name }) => name).join(" and ")} - pdecnn explorer`;
  document.body.classList.toggle("two", page.networks.length > 1);
  page.networks.forEach((facts, k) => networks.push(new Network(k, facts)));
  const words = (page.notice ?? "").split("`").map((text, k) => {
    const part = document.createElement(k % 2 ? "code" : "span");
    part.textContent = text;
    return part;
  });
  at("notice").replaceChildren(...words);
  at("notice").hidden = !page.notice;
  at("drop").hidden = !page.takes_images || page.recorded;
  at("train").hidden = page.dimension !== 2 || page.is_field;
  at("pick").hidden = !page.has_test || page.recorded;
  at("number").max = page.num_samples - 1;
  at("count").textContent = `of 0 to ${page.num_samples - 1}`;
  at("noise").disabled = page.recorded;
  if (page.recorded) {
    at("noise").value = page.amount;
    document.querySelector("input[value=noisy]").parentElement.hidden = true;
  }
  at("time").max = Math.max(...networks.map((network) => network.frames)) - 1;
  at("segments").replaceChildren(
    ...networks[0].facts.blocks.map(({ num_steps }, k) => {
      const part = document.createElement("span");
      part.textContent = `block ${k}`;
      part.style.flexGrow = num_steps + 1;
      part.style.flexBasis = 0;
      return part;
    }),
  );
  at("examples").replaceChildren(
    ...page.examples.map(({ sample, label }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.sample = sample;
      button.title = label ?? `sample ${sample}`;
      button.setAttribute("aria-label", button.title);
      button.append(document.createElement("canvas"));
      button.addEventListener("click", () => loadSample(sample));
      return button;
    }),
  );
  showAmount();
  redraw();
}

try {
  if (at("recorded")) recorded = await unpack(at("recorded").textContent);
  page = await ask("describe");
  showPage();
  listen();
  loadSample(page.examples[0].sample);
} catch (error) {
  say(error.message);
}
