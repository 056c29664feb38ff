// Channels as pictures: bytes on a fixed scale become colours, or curves for signals.

const LEVELS = 254;
const GAP = 4;
const WIDE = 800;
const onPhone = matchMedia("(max-width: 30rem)");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function bytes(picture) {
  picture.bytes ??= Uint8Array.from(atob(picture.data), (letter) => letter.charCodeAt(0));
  return picture.bytes;
}

// Blue below zero, orange above, the ground at zero: told apart by every kind of eye.
function diverging() {
  const [zero, low, high] = ["--zero", "--negative", "--positive"].map((name) => rgb(css(name)));
  return Array.from({ length: LEVELS + 1 }, (_, level) => {
    const size = (2 * level) / LEVELS - 1;
    const end = size < 0 ? low : high;
    return zero.map((part, k) => part + Math.abs(size) * (end[k] - part));
  });
}

const grey = () => Array.from({ length: LEVELS + 1 }, (_, level) => Array(3).fill((level / LEVELS) * 255));

function channelImage(picture, channel, colours) {
  const [, height, width] = picture.shape;
  const values = bytes(picture);
  const image = new ImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    image.data.set(colours[values[channel * width * height + k]], 4 * k);
    image.data[4 * k + 3] = 255;
  }
  return image;
}

function colourImage(picture) {
  const [, height, width] = picture.shape;
  const values = bytes(picture);
  const image = new ImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    for (let c = 0; c < 3; c++) image.data[4 * k + c] = (values[c * width * height + k] / LEVELS) * 255;
    image.data[4 * k + 3] = 255;
  }
  return image;
}

function paint(context, image, x, y, width, height) {
  const small = new OffscreenCanvas(image.width, image.height);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, width, height);
}

function paintCurve(context, picture, channel, x, y, width, height) {
  const points = picture.shape[1];
  const values = bytes(picture);
  context.strokeStyle = css("--rule");
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  if (picture.low < 0 && picture.high > 0) {
    const zero = y + height * (picture.high / (picture.high - picture.low));
    context.beginPath();
    context.moveTo(x, zero);
    context.lineTo(x + width, zero);
    context.stroke();
  }
  context.strokeStyle = css("--accent");
  context.lineWidth = 1.5;
  context.beginPath();
  for (let k = 0; k < points; k++) {
    const level = values[channel * points + k] / LEVELS;
    context.lineTo(x + (width * (k + 0.5)) / points, y + 2 + (height - 4) * (1 - level));
  }
  context.stroke();
}

function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// An input as it is: grey, in colour, or a signal's curves.
export function drawInput(canvas, picture) {
  const isSignal = picture.shape.length === 2;
  const width = canvas.clientWidth || 96;
  const aspect = isSignal ? 0.6 : picture.shape[1] / picture.shape[2];
  const height = Math.max(1, Math.round(width * aspect));
  const context = prepare(canvas, width, height);
  if (isSignal) {
    for (let c = 0; c < picture.shape[0]; c++) paintCurve(context, picture, c, 0, 0, width, height);
  } else {
    const image = picture.shape[0] === 3 ? colourImage(picture) : channelImage(picture, 0, grey());
    paint(context, image, 0, 0, width, height);
  }
}

function tileSize(picture) {
  const [channels, height, width] = picture.shape;
  if (picture.shape.length === 2) return channels > 32 ? [90, 45] : [130, 65];
  const wanted = (channels > 64 ? 44 : channels > 32 ? 54 : channels > 8 ? 70 : 100) * (onPhone.matches ? 0.5 : 1);
  return [wanted, (wanted * height) / width];
}

// A few columns less where all rows are then full.
function evenly(channels, most) {
  for (let columns = most; columns > 0.6 * most; columns--) if (channels % columns === 0) return columns;
  return most;
}

// All channels side by side, on one scale, in at least so many columns.
export function drawChannels(canvas, picture, least) {
  const room = canvas.parentElement.clientWidth;
  const across = (columns) => Math.floor((room + GAP) / columns) - GAP;
  const [usual, tall] = tileSize(picture);
  const wanted = Math.min(room > WIDE ? 1.4 * usual : usual, across(least));
  const columns = evenly(picture.shape[0], Math.max(least, Math.min(picture.shape[0], Math.floor((room + GAP) / (wanted + GAP)))));
  const width = Math.min(across(columns), Math.round(wanted * 1.4));
  const height = Math.round((width * tall) / usual);
  const rows = Math.ceil(picture.shape[0] / columns);
  const whole = columns * (width + GAP) - GAP;
  const context = prepare(canvas, whole, rows * (height + GAP) - GAP);
  canvas.style.width = `${whole}px`;
  canvas.onmousemove = ({ offsetX, offsetY }) => {
    const channel = Math.floor(offsetY / (height + GAP)) * columns + Math.floor(offsetX / (width + GAP));
    canvas.title = channel < picture.shape[0] ? `channel ${channel}` : "";
  };
  const colours = diverging();
  for (let c = 0; c < picture.shape[0]; c++) {
    const x = (c % columns) * (width + GAP);
    const y = Math.floor(c / columns) * (height + GAP);
    if (picture.shape.length === 2) {
      paintCurve(context, picture, c, x, y, width, height);
    } else {
      paint(context, channelImage(picture, c, colours), x, y, width, height);
      context.strokeStyle = css("--rule");
      context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
  }
}

const short = (value) => (value === 0 ? "0" : Math.abs(value) < 0.01 || Math.abs(value) >= 1000 ? value.toExponential(1) : value.toPrecision(2));

// What lies beyond the scale is drawn as its end: how much that is, or nothing.
export function clippedWords({ clipped }) {
  const percent = 100 * clipped;
  return clipped ? `${percent < 0.1 ? "under 0.1" : percent < 1 ? percent.toFixed(1) : percent.toFixed(0)} % clipped` : "";
}

// The scale of a picture: its colours, or for curves its range alone.
export function makeScale(picture) {
  const scale = document.createElement("span");
  scale.className = "scale";
  const words = clippedWords(picture);
  const [low, high] = [short(picture.low), `+${short(picture.high)}`].map((text) => text.replaceAll("-", "−"));
  if (picture.shape.length === 2) {
    scale.textContent = [`each from ${low} to ${high}`, words].filter(Boolean).join(", ");
    return scale;
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [LEVELS + 1, 1];
  const ramp = { shape: [1, 1, LEVELS + 1], bytes: Uint8Array.from({ length: LEVELS + 1 }, (_, k) => k) };
  canvas.getContext("2d").putImageData(channelImage(ramp, 0, diverging()), 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `colours from ${low} over 0 to ${high}`);
  scale.append(low, canvas, high);
  if (words) {
    const beyond = document.createElement("span");
    beyond.textContent = words;
    scale.append(beyond);
  }
  return scale;
}
