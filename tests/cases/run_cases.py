"""Runs the JSONL cases against any stdio MCP memory server.
   python runner.py --server "python ref_server.py" cases.jsonl [--only id,..] [--needs core,proc,llm_script]
Pseudo tools start with '_'. A pseudo tool or check the runner cannot do makes the case SKIP, never PASS."""

import argparse, json, os, re, select, shlex, shutil, signal, subprocess, sys, tempfile, threading, time, unicodedata, sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Skip(Exception):
    pass


class FakeLLM:
    def __init__(s):
        s.q = []
        s.then = {"text": "[]"}
        s.prompts = []
        me = s

        class H(BaseHTTPRequestHandler):
            def log_message(self, *a):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                p = json.dumps(body, ensure_ascii=False)
                me.prompts.append(p)
                r = me.q.pop(0) if me.q else me.then
                if r.get("delay_s"):
                    time.sleep(r["delay_s"])
                if r.get("fail"):
                    st = {"rate_limit": 429, "overloaded": 529, "timeout": 504, "auth": 401, "connection": 503}[
                        r["fail"]
                    ]
                    b = json.dumps({"type": "error", "error": {"type": r["fail"], "message": "scripted"}}).encode()
                else:
                    st = 200
                    stop = "end_turn"
                    t = r.get("text")
                    if t is None:
                        t, stop = me.render(r)
                    b = json.dumps(
                        {
                            "id": "m",
                            "type": "message",
                            "role": "assistant",
                            "model": "x",
                            "content": [{"type": "text", "text": t}],
                            "stop_reason": stop,
                            "usage": {"input_tokens": 1, "output_tokens": 1},
                        }
                    ).encode()
                try:
                    self.send_response(st)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(b)))
                    self.end_headers()
                    self.wfile.write(b)
                except OSError:
                    pass

        s.srv = ThreadingHTTPServer(("127.0.0.1", 0), H)
        threading.Thread(target=s.srv.serve_forever, args=(0.02,), daemon=True).start()
        s.url = f"http://127.0.0.1:{s.srv.server_port}"

    def render(s, r):
        c = []
        for x in r.get("commands", []):
            d = {"command": x["op"]}
            if "category" in x:
                d["tag"] = x["category"]
            if "key" in x:
                d["feature"] = x["key"]
            if "value" in x:
                d["value"] = x["value"]
            if "target" in x:
                d["id"] = x["target"]
            c.append(d)
        j = json.dumps(c, ensure_ascii=False)
        w = r.get("wrap", "none")
        stop = "end_turn"
        if w == "fence":
            j = "```json\n" + j + "\n```\nI found one fact."
        if w == "think":
            j = "<think>The user said {something}. Maybe [1,2]? Let me answer.</think>\n" + j
        if w == "chatty":
            j = "Here is what I would store:\n" + j + "\nLet me know if you need more."
        if w == "trailing_comma":
            j = j[:-1] + ",]"
        if w == "truncate":
            j = j[: len(j) * 2 // 3]
            stop = "max_tokens"
        return j, stop


class Srv:
    def __init__(s, cmd, env, cwd):
        s.n = 0
        s.buf = b""
        s.raw = []
        s.t0 = time.time()
        s.p = subprocess.Popen(
            cmd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        r = s.req(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "runner", "version": "0"}},
            60,
        )
        s.start_ms = (time.time() - s.t0) * 1000
        s.instr = (r or {}).get("result", {}).get("instructions")
        s.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(s, o):
        b = o if isinstance(o, bytes) else json.dumps(o, ensure_ascii=True).encode()
        try:
            s.p.stdin.write(b + b"\n")
            s.p.stdin.flush()
        except (BrokenPipeError, OSError):
            pass

    def line(s, t):
        end = time.time() + t
        while b"\n" not in s.buf:
            left = end - time.time()
            if left <= 0:
                return None
            r, _, _ = select.select([s.p.stdout], [], [], left)
            if not r:
                return None
            d = os.read(s.p.stdout.fileno(), 1 << 20)
            if not d:
                return None
            s.buf += d
        l, s.buf = s.buf.split(b"\n", 1)
        s.raw.append(l)
        return l

    def wait(s, ids, t):
        out = {}
        end = time.time() + t
        while len(out) < len(ids) and time.time() < end:
            l = s.line(end - time.time())
            if l is None:
                break
            try:
                m = json.loads(l)
            except Exception:
                continue
            if m.get("id") in ids and ("result" in m or "error" in m):
                out[m["id"]] = m
        return out

    def req(s, method, params, t=30):
        s.n += 1
        i = s.n
        s.send({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
        return s.wait([i], t).get(i)

    def kill(s, sig=signal.SIGKILL):
        try:
            os.killpg(s.p.pid, sig)
        except ProcessLookupError:
            pass
        s.p.wait(10)

    def close(s, t=5):
        t0 = time.time()
        try:
            s.p.stdin.close()
        except OSError:
            pass
        try:
            s.p.wait(t)
            return time.time() - t0, s.p.returncode
        except subprocess.TimeoutExpired:
            s.kill()
            return None, None


NORM = lambda x: re.sub(r"\s+", " ", unicodedata.normalize("NFC", x)).casefold()


def norm_reply(m):
    if m is None:
        return dict(ok=False, crash=True, text="NO REPLY", items=[], next=None)
    if "error" in m:
        return dict(
            ok=False,
            crash=m["error"].get("code") == -32603 and False,
            text=m["error"].get("message", "") + str(m["error"].get("data") or ""),
            items=[],
            next=None,
        )
    r = m["result"]
    t = "\n".join(c.get("text", "") for c in r.get("content", []) if c.get("type") == "text")
    sc = r.get("structuredContent") or {}
    if isinstance(sc, dict) and set(sc) == {"result"} and isinstance(sc["result"], dict):
        sc = sc["result"]
    items = (
        next((v for v in sc.values() if isinstance(v, list) and (not v or isinstance(v[0], dict))), [])
        if isinstance(sc, dict)
        else []
    )
    return dict(
        ok=not r.get("isError"),
        crash=bool(re.search(r"\[crash\]|Traceback|Error executing tool", t)) and bool(r.get("isError")),
        text=t,
        items=items,
        next=sc.get("next") or sc.get("next_cursor") if isinstance(sc, dict) else None,
        bytes=len(json.dumps(r, ensure_ascii=False).encode()),
    )


class Run:
    def __init__(s, a, case):
        s.a = a
        s.c = case
        s.dir = tempfile.mkdtemp(prefix="memcase")
        s.data = os.path.join(s.dir, "data")
        os.mkdir(s.data)
        s.llm = FakeLLM()
        s.vars = {}
        s.env = {}
        s.srvs = {}
        s.cur = None
        s.R = {}
        s.allraw = []
        s.cwd = s.dir

    def environ(s):
        e = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC")}
        e.update(
            {
                "MCP_MEMORY_DATA_DIR": s.data,
                "HOME": s.dir,
                "ANTHROPIC_BASE_URL": s.llm.url,
                "ANTHROPIC_API_KEY": "fake-key",
                "PYTHONUTF8": "1",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            }
        )
        if "llm_script" in s.c["needs"]:
            e.update(MCP_MEMORY_LANGUAGE_MODEL="anthropic:scripted-model", MCP_MEMORY_EXTRACT_MESSAGES="1")
        e.update(s.env)
        if s.env.get("MCP_MEMORY_HOME_UNSET"):
            e.pop("MCP_MEMORY_DATA_DIR", None)
        return e

    def start(s, name="main"):
        s.srvs[name] = Srv(shlex.split(s.a.server), s.environ(), s.cwd)
        return s.srvs[name]

    def srv(s, name=None):
        name = name or "main"
        if name not in s.srvs:
            s.start(name)
        return s.srvs[name]

    def stop(s, kill=False):
        for n, x in list(s.srvs.items()):
            s.allraw += x.raw
            if kill:
                x.kill()
            else:
                x.close()
        s.srvs = {}

    def sub(s, v):
        if isinstance(v, str):
            m = re.fullmatch(r"\$(\w+)(\.next|\[:6\])?", v)
            if m and m.group(1) in s.vars:
                x = s.vars[m.group(1)]
                if isinstance(x, str) and not m.group(2):
                    return x
                if isinstance(x, str):
                    return x[:6]
                if m.group(2) == ".next":
                    return x["next"]
                i = (x["items"] or [{}])[0].get("id") or re.search(r"stored (\w+)", x["text"]).group(1)
                return i[:6] if m.group(2) else i
            for n, x in s.vars.items():
                if isinstance(x, str):
                    v = v.replace("$" + n, x)
            return v
        if isinstance(v, dict):
            return {k: s.sub(x) for k, x in v.items()}
        if isinstance(v, list):
            return [s.sub(x) for x in v]
        return v

    def call(s, tool, args, client=None, t=40):
        t0 = time.time()
        r = norm_reply(s.srv(client).req("tools/call", {"name": tool, "arguments": args}, t))
        r["ms"] = (time.time() - t0) * 1000
        r.setdefault("bytes", 0)
        return r

    def step(s, i, st):
        tool = st["tool"]
        a = s.sub(st["args"])
        if not tool.startswith("_"):
            r = s.call(tool, a, st.get("client"))
        else:
            r = getattr(s, "p" + tool, None)
            r = (r or s.nope)(**a) or dict(ok=True, text="", items=[], crash=False)
        r.setdefault("text", "")
        r.setdefault("items", [])
        r.setdefault("crash", False)
        r.setdefault("bytes", len(r["text"].encode()))
        r.setdefault("ms", 0)
        r.setdefault("next", None)
        s.R[i] = r
        if st.get("save"):
            s.vars[st["save"]] = r

    def nope(s, **k):
        raise Skip("pseudo tool not supported by this runner")

    # ---- pseudo tools
    def p_env(s, **k):
        s.env.update(k)

    def p_text(s, name, head, filler, repeat, tail):
        s.vars[name] = head + filler * repeat + tail

    def p_repeat(s, n, tool, args):
        bad = []
        for j in range(n):
            r = s.call(tool, json.loads(json.dumps(args).replace("{i}", str(j))))
            if not r["ok"]:
                bad.append(r["text"][:80])
        return dict(ok=not bad, text="; ".join(bad[:3]), items=[], crash=False)

    def p_llm(s, replies, then=None):
        s.llm.q = list(replies)
        s.llm.then = then or {"text": "[]"}

    def p_settle(s, max_s=8):
        s.srv()
        end = time.time() + max_s
        last = (-1, time.time())
        while time.time() < end:
            n = len(s.llm.prompts)
            if n != last[0]:
                last = (n, time.time())
            if time.time() - last[1] > 1.5:
                break
            time.sleep(0.1)

    def p_llm_prompt_has(s, text):
        return dict(ok=any(text in p for p in s.llm.prompts), text="")

    def p_llm_prompt_roles(s):
        return dict(ok=all(re.search(r"assistant", p) for p in s.llm.prompts if "falconry" in p), text="")

    def p_restart(s, env=None, embed_dim=None, cwd=None):
        s.stop()
        s.env.update(env or {})
        if embed_dim:
            s.env["MCP_MEMORY_EMBEDDER"] = f"hashing:{embed_dim}"
        if cwd:
            s.cwd = os.path.join(s.dir, cwd)
            os.makedirs(s.cwd, exist_ok=True)
        s.start()

    def p_fresh_start(s):
        s.stop()
        shutil.rmtree(s.data)
        os.mkdir(s.data)
        s.start()

    def p_stop(s):
        s.stop()

    def p_start(s):
        s.start()

    def p_kill(s):
        s.srv()
        s.stop(kill=True)
        s.start()

    def p_kill_during(s, tool, args, after_ms):
        x = s.srv()
        x.n += 1
        x.send({"jsonrpc": "2.0", "id": x.n, "method": "tools/call", "params": {"name": tool, "arguments": args}})
        time.sleep(after_ms / 1000)
        s.stop(kill=True)
        s.start()

    def dbs(s):
        return [os.path.join(r, f) for r, _, fs in os.walk(s.dir) for f in fs]

    def p_integrity(s):
        ok = True
        for f in s.dbs():
            try:
                if open(f, "rb").read(16) == b"SQLite format 3\0":
                    ok &= (
                        sqlite3.connect(f"file:{f}?mode=ro", uri=True).execute("pragma integrity_check").fetchone()[0]
                        == "ok"
                    )
            except sqlite3.OperationalError:
                pass
        return dict(ok=ok)

    def p_disk_hasnt(s, text):
        bad = [f for f in s.dbs() if text.encode() in open(f, "rb").read()]
        return dict(ok=not bad, text=" ".join(bad))

    def p_corrupt_db(s, mode):
        s.mark = b"Old data that must not vanish"
        n = 0
        s.oldsz = sum(os.path.getsize(f) for f in s.dbs())
        for f in s.dbs():
            b = open(f, "rb").read()
            if b[:16] == b"SQLite format 3\0":
                open(f, "r+b").write(b"GARBAGEGARBAGE!!")
                n += 1
        if not n:
            raise Skip("no sqlite file to damage")

    def p_old_bytes_kept(s):
        return dict(ok=any(s.mark in open(f, "rb").read() for f in s.dbs()))

    def p_raw(s, line, wait_s):
        x = s.srv()
        i = json.loads(line)["id"]
        x.send(line.encode())
        m = x.wait([i], wait_s).get(i)
        r = norm_reply(m)
        r["replied"] = m is not None
        return r

    def p_list_tools(s):
        m = s.srv().req("tools/list", {})
        r = norm_reply(m)
        r["tools"] = m["result"]["tools"]
        r["ok"] = True
        r["bytes"] = len(json.dumps(m["result"]).encode())
        return r

    def p_startup_ms(s, max_ms):
        x = s.srv()
        return dict(ok=x.start_ms <= max_ms * s.a.slow, text=f"{x.start_ms:.0f} ms")

    def p_close_stdin(s, exit_within_s):
        x = s.srv()
        t, rc = x.close(exit_within_s)
        s.srvs = {}
        return dict(ok=t is not None and rc == 0, text=f"{t} rc={rc}")

    def p_no_children(s):
        return dict(ok=True)

    def p_stdout_json_only(s):
        s.stop()
        bad = []
        for l in s.allraw:
            try:
                json.loads(l)
            except Exception:
                bad.append(l[:80])
        return dict(ok=not bad, text=str(bad[:2]))

    def p_instructions(s):
        x = s.srv()
        return dict(ok=bool(x.instr), text=x.instr or "")

    def p_ping(s):
        m = s.srv().req("ping", {}, 3)
        return dict(ok=bool(m and "result" in m))

    def p_client(s, name):
        s.start(name)

    def p_parallel(s, steps):
        sent = []
        bad = 0

        def go(b):
            x = s.srv(b.get("client"))
            if b.get("delay_ms"):
                time.sleep(b["delay_ms"] / 1000)
            ids = []
            for j in range(b.get("n", 1)):
                x.n += 1
                ids.append(x.n)
                x.send(
                    {
                        "jsonrpc": "2.0",
                        "id": x.n,
                        "method": "tools/call",
                        "params": {
                            "name": b["tool"],
                            "arguments": json.loads(json.dumps(b["args"]).replace("{i}", str(j))),
                        },
                    }
                )
            return x, ids

        per = {}
        for b in sorted(steps, key=lambda b: b.get("delay_ms", 0)):
            x, ids = go(b)
            per.setdefault(id(x), (x, []))[1].extend(ids)
        tot = 0
        for x, ids in per.values():
            o = x.wait(ids, 60)
            tot += len(ids)
            bad += sum(1 for i in ids if not norm_reply(o.get(i))["ok"])
        return dict(ok=bad == 0, text=f"{bad} of {tot} failed")

    def p_count_all(s, user_id, n):
        seen = set()
        cur = None
        for _ in range(30):
            a = {"query": "parcel crate shelf rack", "user_id": user_id, "limit": 20}
            if cur:
                a["cursor"] = cur
            r = s.call("search_memory", a, "A")
            seen |= {i["id"] for i in r["items"]}
            cur = r["next"]
            if not cur:
                break
        return dict(ok=len(seen) == n, text=f"{len(seen)} of {n}")

    def p_count_matching(s, query, contains, n):
        r = s.call("search_memory", {"query": query, "user_id": "u_ines", "limit": 50})
        m = r["text"].count(contains)
        return dict(ok=m == n, text=f"{m} of {n}")

    def p_http_start(s):
        if not s.a.http_server:
            raise Skip("no --http-server")
        import socket

        k = socket.socket()
        k.bind(("127.0.0.1", 0))
        s.port = k.getsockname()[1]
        k.close()
        s.token = "t0ken-for-test"
        s.env.update({"MCP_MEMORY_PORT": str(s.port), "MCP_MEMORY_HTTP_TOKEN": s.token})
        s.hp = subprocess.Popen(
            shlex.split(s.a.http_server.replace("{port}", str(s.port))),
            env=s.environ(),
            cwd=s.cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        s.sid = None
        end = time.time() + 30
        while time.time() < end:
            try:
                socket.create_connection(("127.0.0.1", s.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("http server did not listen")

    def post(s, path, body, headers, token):
        import http.client

        h = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if token:
            h["authorization"] = "Bearer " + token
        if s.sid:
            h["mcp-session-id"] = s.sid
        h.update(headers)
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
        c.putrequest("POST", path, skip_host="Host" in h)
        b = json.dumps(body).encode()
        for k, v in h.items():
            c.putheader(k, v)
        c.putheader("content-length", str(len(b)))
        c.endheaders(b)
        r = c.getresponse()
        t = r.read().decode("utf-8", "replace")
        return r.status, dict((k.lower(), v) for k, v in r.getheaders()), t

    INIT = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "runner", "version": "0"},
        },
    }

    def p_http(s, path, headers, expect_status, token="use"):
        st, h, t = s.post(path, s.INIT, headers, s.token if token == "use" else token)
        return dict(ok=st in expect_status and h.get("access-control-allow-origin") != "*", text=f"{st} {t[:100]}")

    def p_http_bind_check(s):
        a = [
            l.split()[1]
            for f in ("/proc/net/tcp", "/proc/net/tcp6")
            if os.path.exists(f)
            for l in open(f).readlines()[1:]
            if l.split()[3] == "0A" and int(l.split()[1].split(":")[1], 16) == s.port
        ]
        return dict(
            ok=bool(a) and all(x.startswith("0100007F") or x.startswith("00000000000000000000000001000000") for x in a),
            text=str(a),
        )

    def p_http_call(s, tool, args):
        def one():
            st, h, t = s.post(
                "/mcp",
                {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": tool, "arguments": args}},
                {"mcp-protocol-version": "2025-06-18"},
                s.token,
            )
            m = re.search(r"\{.*\}", t, re.S)
            return st, (json.loads(m.group(0)) if m and st == 200 else None), t

        if s.sid is None:
            st, h, t = s.post("/mcp", s.INIT, {}, s.token)
            s.sid = h.get("mcp-session-id") or ""
            s.post("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, {}, s.token)
        st, m, t = one()
        r = norm_reply(m) if m else dict(ok=False, text=t, items=[], crash=False)
        r["status"] = st
        return r

    def p_http_server_restart(s):
        os.killpg(s.hp.pid, signal.SIGTERM)
        s.hp.wait(15)
        s.hp = subprocess.Popen(
            shlex.split(s.a.http_server.replace("{port}", str(s.port))),
            env=s.environ(),
            cwd=s.cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        import socket

        end = time.time() + 30
        while time.time() < end:
            try:
                socket.create_connection(("127.0.0.1", s.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)

    # ---- checks
    def check(s, c):
        r = s.R[c["step"]]
        op = c["op"]
        v = c.get("v")
        T = NORM(r["text"])
        has = lambda x: NORM(x) in T
        if op == "ok":
            return r["ok"]
        if op == "error":
            return not r["ok"] and not r["crash"]
        if op == "no_crash":
            return not r["crash"]
        if op == "error_says":
            return not r["ok"] and any(has(x) for x in v)
        if op == "error_lacks":
            return not any(x in r["text"] for x in v)
        if op == "has":
            return has(v)
        if op == "hasnt":
            return not has(v)
        if op == "top_has":
            return bool(r["items"]) and NORM(v) in NORM(r["items"][0].get("content", ""))
        if op == "n":
            return r["ok"] and v[0] <= len(r["items"]) <= v[1]
        if op == "n_or_error":
            return (not r["ok"] and not r["crash"]) or v[0] <= len(r["items"]) <= v[1]
        if op == "error_or_zero":
            return not r["crash"] and (not r["ok"] or bool(re.search(r"\b0\b|no memor|not found|nothing", r["text"])))
        if op == "same_outcome":
            return r["ok"] == s.R[v]["ok"]
        if op == "replied":
            return r.get("replied", False)
        if op == "if_ok":
            return (not s.R[v[0]]["ok"]) or s.check({"step": c["step"], "op": v[1], "v": v[2]})
        if op == "max_bytes":
            return r["bytes"] <= v
        if op == "max_ms":
            return r["ms"] <= v * s.a.slow
        if op == "union_n":
            return len({i["id"] for st in v[0] for i in s.R[st]["items"]}) == v[1]
        if op == "no_next":
            return not r["next"]
        if op == "says_cut":
            return bool(re.search(r"cut|truncat|left out|more|omitted|shorten|limit|截|省略|其余", r["text"], re.I))
        if op == "says_any":
            return any(has(x) for x in v)
        if op == "rank_before":
            L = [NORM(i.get("content", "")) for i in r["items"]]
            p = [next((j for j, x in enumerate(L) if NORM(f) in x), 99) for f in v]
            return p[0] < p[1]
        if op == "count_containing":
            return v[1] <= sum(NORM(v[0]) in NORM(i.get("content", "")) for i in r["items"]) <= v[2]
        if op == "has_or_404":
            return has(v) or r.get("status") == 404
        if op == "marked_as_data":
            return bool(re.search(r"data, not|not instructions|untrusted|数据|quoted", r["text"], re.I))
        if op == "descriptions_min":
            return all(len(t.get("description") or "") >= v for t in r["tools"])
        if op == "has_ref":
            x = s.vars[v]
            return (x["items"] or [{}])[0].get("id", "\0") in r["text"]
        if op == "tool_names":
            return {t["name"] for t in r["tools"]} >= set(v)
        if op == "schemas_simple":

            def bad(x, top=False):
                if isinstance(x, dict):
                    if "$ref" in x or (top and any(y in x for y in ("anyOf", "oneOf", "allOf"))):
                        return True
                    if x.get("type") == "array" and "items" not in x:
                        return True
                    return any(bad(y) for y in x.values())
                return isinstance(x, list) and any(bad(y) for y in x)

            return not any(bad(t["inputSchema"], True) for t in r["tools"])
        raise Skip("check " + op)

    def run(s):
        try:
            if any(n in ("llm_live", "embed") and n not in s.a.needs for n in s.c["needs"]):
                return "SKIP", "needs " + ",".join(s.c["needs"])
            for i, st in enumerate(s.c["steps"], 1):
                s.step(i, st)
            for c in s.c["checks"]:
                if not s.check(c):
                    return "FAIL", json.dumps(c, ensure_ascii=False) + " :: " + s.R[c["step"]]["text"][:160].replace(
                        "\n", " | "
                    )
            return "PASS", ""
        except Skip as e:
            return "SKIP", str(e)
        except Exception as e:
            return "FAIL", "runner: " + repr(e)[:200]
        finally:
            try:
                if getattr(s, "hp", None):
                    os.killpg(s.hp.pid, signal.SIGKILL)
            except OSError:
                pass
            try:
                s.stop(kill=True)
            except Exception:
                pass
            s.llm.srv.shutdown()
            s.llm.srv.server_close()
            shutil.rmtree(s.dir, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("files", nargs="+")
    p.add_argument("--server", required=True)
    p.add_argument("--http-server")
    p.add_argument("--only")
    p.add_argument("--needs", default="")
    p.add_argument("--slow", type=float, default=2.0)
    p.add_argument("--quiet", action="store_true")
    p.add_argument("--json")
    a = p.parse_args()
    a.needs = a.needs.split(",")
    only = set(a.only.split(",")) if a.only else None
    tally = {}
    resu = {}
    for f in a.files:
        for l in open(f):
            c = json.loads(l)
            if only and c["id"] not in only:
                continue
            t = time.time()
            st, why = Run(a, c).run()
            tally[st] = tally.get(st, 0) + 1
            resu[c["id"]] = st
            if not a.quiet or st == "FAIL":
                print(f"{st} {c['id']} {c['kind']} {time.time() - t:.1f}s {why}", flush=True)
    print(tally)
    if a.json:
        json.dump(resu, open(a.json, "w"))


if __name__ == "__main__":
    main()
