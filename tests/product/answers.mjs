// Run by test_makers_clients: npm's openai against the real model. Arguments: address, model, question.
// Prints one JSON object: the same answer whole, streamed and by way of /v1/responses; and a tool call.
import OpenAI from "openai";

const [url, model, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const wanted = { model, messages, temperature: 0, max_tokens: 24 };

const whole = (await client.chat.completions.create(wanted)).choices[0].message.content;

let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...wanted, stream: true }))
  streamed += chunk.choices[0].delta.content ?? "";

const response = await client.responses.create({ model, input: question, temperature: 0, max_output_tokens: 24 });

const parameters = { type: "object", properties: { town: { type: "string", maxLength: 20 } }, required: ["town"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "look_up", parameters } }];
const calling = { model, messages, temperature: 0, tools, tool_choice: "required", parallel_tool_calls: false };
const call = (await client.chat.completions.create(calling)).choices[0].message.tool_calls[0].function;

console.log(JSON.stringify({ whole, streamed, response: response.output_text, call }));
