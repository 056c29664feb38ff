// Curves against artificial time, block after block, and bars for the classes.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MARGIN = { left: 46, right: 10, top: 8, bottom: 34 };
const LETTER = 6.5;
const MOST_DOTS = 60;
const MOST_BARS = 10;

function element(name, attributes, text) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function tidy(value) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1).replaceAll("-", "−");
  return String(Number(value.toPrecision(3)));
}

function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span));
  return power * ([0.2, 0.5, 1, 2, 5].find((factor) => span / (factor * power) <= 5) ?? 5);
}

// The change of the values, and zero where that is near.
function range(values) {
  if (!values.length) return [0, 1];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low >= 0 && low <= (high - low) / 2) return [0, 1.08 * high || 1];
  const reach = Math.max(high - low, 0.02 * Math.abs(low), 0.02 * Math.abs(high)) || 1;
  const middle = (low + high) / 2;
  return [middle - 0.55 * reach, middle + 0.55 * reach];
}

// series: [{kind, groups: one list of values for each block}]; times: one list for each block, of
// which the first is number `from`.
export function drawCurves(svg, series, times, cursor, label, from = 0) {
  const width = svg.clientWidth || 320;
  const height = svg.clientHeight || 176;
  const numFrames = times.flat().length;
  const values = series.flatMap((one) => one.groups.flat()).filter((value) => value !== null);
  const [low, high] = range(values);
  const across = (index) =>
    MARGIN.left + ((width - MARGIN.left - MARGIN.right) * (index + 0.5)) / numFrames;
  const up = (value) =>
    height - MARGIN.bottom - ((height - MARGIN.top - MARGIN.bottom) * (value - low)) / (high - low);
  const parts = [];
  const step = niceStep(high - low);
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
    parts.push(element("path", { class: "axis", d: `M${MARGIN.left} ${up(tick)}H${width - MARGIN.right}` }));
    parts.push(element("text", { x: MARGIN.left - 6, y: up(tick) + 4, "text-anchor": "end" }, tidy(tick)));
  }
  parts.push(
    element("text", { x: 12, y: height / 2 - 10, "text-anchor": "middle", transform: `rotate(-90 12 ${height / 2 - 10})` }, label),
  );
  const widest = LETTER * (1 + Math.max(...times.flat().map((time) => tidy(time).length)));
  const every = Math.ceil((widest * numFrames) / (width - MARGIN.left - MARGIN.right));
  let begin = 0;
  times.forEach((blockTimes, block) => {
    const end = begin + blockTimes.length - 1;
    if (block > 0) {
      const border = (across(begin) + across(begin - 1)) / 2;
      parts.push(element("path", { class: "border", d: `M${border} ${MARGIN.top}V${height - 4}` }));
    }
    // The last ones leave room for the first of the next block.
    const last = block < times.length - 1 ? blockTimes.length - every : blockTimes.length - 1;
    blockTimes.forEach((time, j) => {
      if (j === 0 || (j % every === 0 && j <= last)) {
        parts.push(element("text", { x: across(begin + j), y: height - MARGIN.bottom + 14, "text-anchor": "middle" }, tidy(time)));
      }
    });
    const name = block === 0 ? `t in block ${from}` : `block ${block}`;
    parts.push(element("text", { x: (across(begin) + across(end)) / 2, y: height - 4, "text-anchor": "middle" }, name));
    begin = end + 1;
  });
  parts.push(element("path", { class: "cursor", d: `M${across(cursor)} ${MARGIN.top}V${height - MARGIN.bottom}` }));
  for (const one of series) {
    let index = 0;
    for (const group of one.groups) {
      const points = group
        .map((value, j) => (value === null ? null : [across(index + j), up(value)]))
        .filter((point) => point !== null);
      if (points.length > 1) {
        const d = points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
        parts.push(element("path", { class: `${one.kind} curve`, d }));
      }
      if (numFrames <= MOST_DOTS) {
        for (const [cx, cy] of points) parts.push(element("circle", { class: `${one.kind} dot`, cx, cy, r: 3 }));
      }
      index += group.length;
    }
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
}

const percent = (probability) => (probability === null ? "–" : (100 * probability).toFixed(1));

// The most probable classes of either input, the clean one's bar above the noisy one's.
export function drawBars(list, classNames, clean, noisy, label) {
  const weight = (k) => Math.max(clean[k] ?? 0, noisy?.[k] ?? 0);
  const order = classNames.map((_, k) => k);
  if (order.length > MOST_BARS) {
    order.sort((a, b) => weight(b) - weight(a));
    order.length = MOST_BARS;
  }
  list.replaceChildren(
    ...order.map((k) => {
      const row = document.createElement("li");
      const name = document.createElement("span");
      name.className = classNames[k] === label ? "class true" : "class";
      name.textContent = name.title = classNames[k];
      const track = document.createElement("span");
      track.className = "track";
      for (const [kind, all] of [["clean", clean], ["noisy", noisy]]) {
        if (!all) continue;
        const bar = document.createElement("i");
        bar.className = kind;
        bar.style.width = `${100 * (all[k] ?? 0)}%`;
        track.append(bar);
      }
      const number = document.createElement("span");
      number.className = "percent";
      number.textContent = `${percent(clean[k])}${noisy ? ` → ${percent(noisy[k])}` : ""} %`;
      row.title = `${classNames[k]}: input ${percent(clean[k])} %` + (noisy ? `, with noise ${percent(noisy[k])} %` : "");
      row.append(name, track, number);
      return row;
    }),
  );
}
