"use strict";

const OpenAI = require("openai");
const given = require("./seen.cjs");

const client = new OpenAI({ baseURL: `${given.node}/v1`, apiKey: "none" });
const tools = [{ type: "function", function: given.weather }];
const asked = (text = given.question) => [{ role: "user", content: text }];
const chat = (fields) =>
  client.chat.completions.create({ model: given.speaker, messages: asked(), ...fields });
const used = (usage) => [usage.prompt_tokens, usage.completion_tokens];

async function whole() {
  const answer = await chat({});
  return { text: answer.choices[0].message.content, usage: used(answer.usage) };
}

async function streamed() {
  const pieces = [];
  let usage = null;
  for await (const frame of await chat({ stream: true, stream_options: { include_usage: true } })) {
    const text = frame.choices[0]?.delta.content;
    if (text) pieces.push(text);
    usage = frame.usage ?? usage;
  }
  return { text: pieces.join(""), n_pieces: pieces.length, usage: used(usage) };
}

async function answered(message) {
  const results = message.tool_calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: given.result,
  }));
  const messages = [...asked(), message, ...results];
  const last = await chat({ model: given.caller, messages, tools });
  return {
    calls: message.tool_calls.map(({ function: { name, arguments: text } }) => [
      name,
      JSON.parse(text),
    ]),
    text: last.choices[0].message.content,
  };
}

async function toolsWhole() {
  return answered((await chat({ model: given.caller, tools })).choices[0].message);
}

async function toolsStreamed() {
  const stream = client.chat.completions.stream({ model: given.caller, messages: asked(), tools });
  return answered(await stream.finalMessage());
}

async function readMortal(pieces) {
  for await (const frame of await chat({ model: given.mortal, stream: true })) {
    pieces.push(frame.choices[0].delta.content ?? "");
  }
}

async function main() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const vectors = await client.embeddings.create({ model: given.embedder, input: given.texts });
  given.show({
    version: given.versionOf("openai"),
    models,
    whole: await whole(),
    streamed: await streamed(),
    tools: await toolsWhole(),
    tools_streamed: await toolsStreamed(),
    absent: await given.failure(() => chat({ model: given.absent })),
    too_long: await given.failure(() => chat({ messages: asked(given.tooLong) })),
    died: await given.died(readMortal),
    embedded: vectors.data.map((item) => item.embedding),
  });
}

main();
