"use strict";

const { Ollama } = require("ollama");
const given = require("./seen.cjs");

const client = new Ollama({ host: `${given.node}/ollama` });
const tools = [{ type: "function", function: given.weather }];
const asked = (text = given.question) => [{ role: "user", content: text }];
const chat = (fields) => client.chat({ model: given.speaker, messages: asked(), ...fields });
const used = (answer) => [answer.prompt_eval_count, answer.eval_count];

async function whole() {
  const answer = await chat({});
  return { text: answer.message.content, usage: used(answer) };
}

async function streamed() {
  const lines = [];
  for await (const line of await chat({ stream: true })) lines.push(line);
  const pieces = lines.map((line) => line.message.content).filter(Boolean);
  return { text: pieces.join(""), n_pieces: pieces.length, usage: used(lines.at(-1)) };
}

async function answered(calls) {
  const message = { role: "assistant", content: "", tool_calls: calls };
  const results = calls.map((call) => ({
    role: "tool",
    tool_name: call.function.name,
    content: given.result,
  }));
  const messages = [...asked(), message, ...results];
  const last = await chat({ model: given.caller, messages, tools });
  return {
    calls: calls.map((call) => [call.function.name, call.function.arguments]),
    text: last.message.content,
  };
}

async function toolsStreamed() {
  const calls = [];
  for await (const line of await chat({ model: given.caller, tools, stream: true })) {
    calls.push(...(line.message.tool_calls ?? []));
  }
  return answered(calls);
}

async function readMortal(pieces) {
  for await (const line of await chat({ model: given.mortal, stream: true })) {
    pieces.push(line.message.content ?? "");
  }
}

async function main() {
  const { models } = await client.list();
  const { embeddings } = await client.embed({ model: given.embedder, input: given.texts });
  given.show({
    version: given.versionOf("ollama"),
    models: models.map((model) => model.name),
    whole: await whole(),
    streamed: await streamed(),
    tools: await answered((await chat({ model: given.caller, tools })).message.tool_calls),
    tools_streamed: await toolsStreamed(),
    absent: await given.failure(() => chat({ model: given.absent })),
    too_long: await given.failure(() => chat({ messages: asked(given.tooLong) })),
    died: await given.died(readMortal),
    embedded: embeddings,
  });
}

main();
