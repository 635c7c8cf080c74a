// A client of LogMQ for Node.js: a class, and a program that uses it. It needs nothing but Node.
//
//     node client.mjs 127.0.0.1 8080 produce orders 'two teas' 'one coffee'   # their offsets
//     node client.mjs 127.0.0.1 8080 consume orders            # all there is: offset, TAB, message
//     node client.mjs 127.0.0.1 8080 consume orders 12         # from an offset on
//     node client.mjs 127.0.0.1 8080 tail orders               # and what comes, until it is interrupted
//
// Exit code 0: done; 1: refused, or the connection was lost, with a line on standard error; 2: wrong usage.
import net from "node:net";
import { pathToFileURL } from "node:url";

export class LogmqError extends Error {
  // `code`: the server's word, as in `ERR BAD_OFFSET ...`; LOST: there is no connection any more.
  constructor(code, text) {
    super(`${code} ${text}`);
    this.code = code;
  }
}

const LF = 0x0a;

export class Client {
  // One connection. Requests may be sent without waiting for answers, which come in their order.
  // For an answer it waits `answerMs`; another protocol's server may give none.
  static connect(host, port, answerMs = 10_000) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ host, port, noDelay: true }, () => {
        socket.off("error", reject);
        resolve(new Client(socket, answerMs));
      });
      socket.once("error", reject);
    });
  }

  constructor(socket, answerMs) {
    this.socket = socket;
    this.waiting = []; // of each request under way: { resolve, reject, onRecord }
    this.input = Buffer.alloc(0);
    this.lost = null;
    socket.on("data", (data) => this.#receive(data));
    socket.on("error", (error) => this.#lose(error.message));
    socket.setTimeout(answerMs, () => {
      if (this.waiting.length && !this.waiting[0].onRecord) socket.destroy(new Error("no answer came"));
    });
    socket.on("close", () => this.#lose("the connection was closed"));
  }

  // The offset of the message, a Buffer or a text of any bytes. A text without line ends goes as a line.
  async produce(topic, message) {
    const body = Buffer.from(message);
    const plain = !body.includes(LF) && body.at(-1) !== 0x0d;
    const head = plain ? `PRODUCE ${topic} ` : `APPEND ${topic} ${body.length}\n`;
    return this.#ask(Buffer.concat([Buffer.from(head), body, Buffer.from(plain ? "\n" : "")]));
  }

  // The record at an offset, { offset, message, next }; null at the topic's end.
  consume(topic, offset) {
    return this.#ask(Buffer.from(`CONSUME ${topic} ${offset}\n`));
  }

  // All records from an offset to the topic's present end.
  async *records(topic, offset = 0) {
    for (let record; (record = await this.consume(topic, offset)) !== null; offset = record.next) {
      yield record;
    }
  }

  // Calls `onRecord` with each record from an offset on, for ever; no other request may follow. The promise is
  // rejected when the connection or the topic ends.
  tail(topic, offset, onRecord) {
    return this.#ask(Buffer.from(`TAIL ${topic} ${offset}\n`), onRecord);
  }

  // What is owed is still answered; then the connection is closed.
  close() {
    return new Promise((resolve) => {
      this.socket.destroyed ? resolve() : this.socket.once("close", resolve).end();
    });
  }

  #ask(request, onRecord = null) {
    return new Promise((resolve, reject) => {
      if (this.lost) return reject(this.lost);
      this.waiting.push({ resolve, reject, onRecord });
      this.socket.write(request);
    });
  }

  #receive(data) {
    this.input = this.input.length ? Buffer.concat([this.input, data]) : data;
    while (this.waiting.length && this.#takeAnswer());
  }

  // Takes one answer off the input; false: it is not all there yet.
  #takeAnswer() {
    const input = this.input;
    if (input.length < 2) return false;
    if (input.toString("latin1", 0, 2) !== "ME") {
      const end = input.indexOf(LF);
      if (end < 0) return false;
      this.input = input.subarray(end + 1);
      this.#answer(input.toString("utf8", 0, end).split(" "));
      return true;
    }
    // MESSAGE <offset> <length> <payload> LF: the payload may hold any bytes, so it is taken by its length.
    const head = /^MESSAGE (\d+) (\d+) /.exec(input.toString("latin1", 0, 60));
    if (head === null) {
      if (input.length >= 60) this.socket.destroy(new Error("no answer of LogMQ"));
      return false;
    }
    const start = head[0].length;
    const length = Number(head[2]);
    if (input.length < start + length + 1) return false;
    const offset = Number(head[1]);
    const record = { offset, message: input.subarray(start, start + length), next: offset + 4 + length };
    this.input = input.subarray(start + length + 1);
    const { resolve, onRecord } = this.waiting[0];
    if (onRecord) {
      onRecord(record);
    } else {
      this.waiting.shift();
      resolve(record);
    }
    return true;
  }

  #answer([word, ...rest]) {
    const { resolve, reject } = this.waiting.shift();
    if (word === "OK") resolve(Number(rest[0]));
    else if (word === "EOF") resolve(null);
    else if (word === "ERR") reject(new LogmqError(rest[0], rest.slice(1).join(" ")));
    else {
      reject(new LogmqError("LOST", `no answer of LogMQ: ${word}`));
      this.socket.destroy();
    }
  }

  #lose(text) {
    this.lost ??= new LogmqError("LOST", text);
    for (const { reject } of this.waiting.splice(0)) reject(this.lost);
  }
}

async function main([host, port, what, topic, ...rest]) {
  const given = what === "produce" ? rest.length > 0 : rest.length < 2 && /^\d+$/.test(rest[0] ?? "0");
  if (!topic || !["produce", "consume", "tail"].includes(what) || !given) {
    console.error("usage: node client.mjs HOST PORT produce TOPIC MESSAGE... | consume|tail TOPIC [OFFSET]");
    return 2;
  }
  const print = ({ offset, message }) =>
    process.stdout.write(Buffer.concat([Buffer.from(`${offset}\t`), message, Buffer.from("\n")]));
  let client;
  try {
    client = await Client.connect(host, Number(port));
    if (what === "produce") {
      const offsets = await Promise.all(rest.map((message) => client.produce(topic, message)));
      for (const offset of offsets) console.log(offset);
    } else if (what === "consume") {
      for await (const record of client.records(topic, Number(rest[0] ?? 0))) print(record);
    } else {
      await client.tail(topic, Number(rest[0] ?? 0), print);
    }
    return 0;
  } catch (error) {
    console.error(error.message);
    return 1;
  } finally {
    await client?.close();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  process.exitCode = await main(process.argv.slice(2));
}
