// What every script for Node needs: where the node is, what its models are, and how to tell.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const given = JSON.parse(process.argv[2]);

async function failure(ask) {
  try {
    return { raised: null, answer: String(await ask()) };
  } catch (error) {
    const status = error.status ?? error.status_code ?? error.statusCode ?? null;
    return { raised: error.constructor.name, status, message: error.message };
  }
}

async function died(read) {
  const pieces = [];
  const seen = await failure(() => read(pieces));
  return { ...seen, text: pieces.join("") };
}

function versionOf(name) {
  const manifest = path.join(process.env.NODE_PATH, name, "package.json");
  return JSON.parse(fs.readFileSync(manifest, "utf8")).version;
}

module.exports = {
  ...given,
  absent: "scripted/absent",
  question: "What is the capital of France?",
  tooLong: "word ".repeat(2000),
  texts: ["a fox", "the sea", "a fox"],
  result: "sunny",
  weather: {
    name: "weather",
    description: "Tell the weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
  failure,
  died,
  versionOf,
  show: (seen) => console.log(JSON.stringify(seen)),
};
