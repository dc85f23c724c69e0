// Opens the dashboard in Chromium, takes pictures, and looks for faults; `scripts/dashboard` runs it.
//
// Its argument is JSON: url, folder, name, state (good or bad; none: the page asks for a password),
// password (to sign in with), browser (the program), seconds to watch before the pictures.
// It prints JSON: the faults.
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "package.json"));
const puppeteer = (await import(require.resolve("puppeteer-core"))).default;

const asked = JSON.parse(process.argv[2]);
const VIEWS = [
  { view: "light", width: 1280, height: 900, scheme: "light" },
  { view: "dark", width: 1280, height: 900, scheme: "dark" },
  { view: "phone", width: 390, height: 844, scheme: "light" },
];
const faults = [];
const fault = (view, text) => faults.push(`${asked.name}, ${view}: ${text}`);

// Runs in the page: faults that a person would see, or a reader of screens would hear.
function inspect() {
  const found = [];
  const numbers = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const part = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = numbers(color).map(part);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const isShown = (element) => element.checkVisibility() && element.getClientRects().length > 0;
  const seen = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE).map((n) => n.data.trim()).join("");
    if (!own || !isShown(element)) continue;
    const style = getComputedStyle(element);
    const [text, back] = [light(style.color), light(ground(element))];
    const contrast = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const what = `${style.color} on ${ground(element)}`;
    if (contrast < least && !seen.has(what)) {
      seen.add(what);
      found.push(`contrast ${contrast.toFixed(2)} of "${own.slice(0, 30)}": ${what}`);
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) {
    const sticksOut = (e) => isShown(e) && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre");
    const wide = [...document.querySelectorAll("body *")].filter(sticksOut);
    found.push(`wider than the window: ${wide.slice(0, 3).map((e) => e.id || e.className || e.tagName).join(", ")}`);
  }
  for (const field of document.querySelectorAll("input, select")) {
    if (isShown(field) && field.labels.length === 0) found.push(`${field.id} has no label`);
  }
  for (const button of document.querySelectorAll("button, a")) {
    if (isShown(button) && !button.textContent.trim()) found.push("a button or link without a name");
  }
  return found;
}

async function show(browser, { view, width, height, scheme }) {
  const page = await browser.newPage();
  await page.setViewport({ width, height, isMobile: view === "phone", hasTouch: view === "phone" });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  const mayBeRefused = asked.password !== undefined || !asked.state;
  page.on("pageerror", (error) => fault(view, `error in the page: ${error.message}`));
  page.on("console", (message) => {
    // The browser reports answers that are errors: those to a wrong password, and to reads of a bucket that is away.
    const isRefusal = (mayBeRefused && /401/.test(message.text())) || (asked.state === "bad" && /504/.test(message.text()));
    if (["error", "warn"].includes(message.type()) && !isRefusal) fault(view, `console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== new URL(asked.url).origin) fault(view, `asks ${url}`);
  });
  await page.goto(asked.url);
  if (mayBeRefused) {
    await page.waitForSelector("#login:not([hidden])", { timeout: 20000 });
    if (asked.password !== undefined) {
      await page.type("#password", "wrong");
      await page.click("#login-form button");
      await page.waitForFunction(() => document.getElementById("login-error").textContent.trim() !== "", { timeout: 20000 });
      await page.$eval("#password", (field) => { field.value = ""; });
      await page.type("#password", asked.password);
      await page.click("#login-form button");
    }
  }
  if (asked.state) {
    await page.waitForSelector(`#state.${asked.state}`, { timeout: 60000 });
    await new Promise((done) => setTimeout(done, asked.seconds * 1000));
    await page.evaluate(() => document.querySelector("#browse button").click());
    await page.waitForFunction(() => !/^(Looking …)?$/.test(document.getElementById("keys-note").textContent), { timeout: 60000 });
    if (await page.$("#keys td button")) {
      await page.evaluate(() => document.querySelector("#keys td button").click());
      await page.waitForFunction(() => !/Choose a key/.test(document.getElementById("value").textContent), { timeout: 20000 });
    }
  }
  for (const found of await page.evaluate(inspect)) fault(view, found);
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: join(asked.folder, `${asked.name}-${view}.png`), fullPage: true });
  await page.close();
}

const browser = await puppeteer.launch({ executablePath: asked.browser, args: ["--no-sandbox", "--disable-gpu"] });
try {
  for (const view of VIEWS) {
    await show(browser, view).catch((error) => fault(view.view, error.message));
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify(faults));
