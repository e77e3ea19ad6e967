package cells_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"reflect"
	"testing"
)

// How many lines the cells print that print many, and that print slowly. They are numbers that
// count up from 0.
const (
	manyLines = 10000
	slowLines = 40
)

// language is the code, in a language, for what the table checks.
type language struct {
	name     string
	row      string // of the document, which test/e2e/coverage looks for
	print    string // "to out" to stdout, and "to err" to stderr
	value    string // has the value 42
	display  string // shows a picture, JSON and HTML
	many     string // prints many lines
	slow     string // prints a few lines in some hundred milliseconds
	set, get string // set a variable; print 42 by way of it, or fail
	raise    string // prints "before" and fails
	ename    string
	evalue   string // is in the text of the failure
	wrong    string // does not compile
	// wrongName is the ename of that.
	wrongName string
	endless   string // prints a line and computes for ever
	waits     string // the same, but does not compute meanwhile
	pid       string // prints the id of the kernel's process

	except map[string]exception
}

// exception is a behaviour that a language does not have.
type exception struct {
	because string
	instead func(t *testing.T, d *daemon, l language, id string)
}

func python() language {
	return language{
		name:    "python",
		row:     "row execd/languages/python",
		print:   "import sys; print('to out'); print('to err', file=sys.stderr)",
		value:   "41 + 1",
		display: fmt.Sprintf("from IPython.display import display, Image, JSON, HTML\nimport base64\ndisplay(Image(base64.b64decode(%q))); display(JSON({'a': [1, 2]})); display(HTML('<b>é</b>'))", picture(3, 2)),
		many:    fmt.Sprintf("for i in range(%d): print(i)", manyLines),
		slow:    fmt.Sprintf("import time\nfor i in range(%d): print(i); time.sleep(0.02)", slowLines),
		set:     "x = 41", get: "print(x + 1)",
		raise: "print('before')\nraise ValueError('bad')", ename: "ValueError", evalue: "bad",
		wrong: "def", wrongName: "SyntaxError",
		endless: "print('on')\nwhile True: pass",
		waits:   "import time\nprint('on')\ntime.sleep(100000)",
		pid:     "import os; print(os.getpid())",
	}
}

func bash() language {
	const because = "a shell's commands have no values: what they say is what they print"
	return language{
		name:  "bash",
		row:   "row execd/languages/bash",
		print: "echo to out; echo to err >&2",
		many:  fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo $i; done", manyLines),
		slow:  fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo $i; sleep 0.02; done", slowLines),
		set:   "x=41; f() { echo $((x + 1)); }", get: "f",
		raise: "echo before; (exit 3)", ename: "ExitCode", evalue: "3",
		wrong: "if then fi", wrongName: "ExitCode",
		endless: "echo on; while true; do :; done",
		waits:   "echo on; sleep 100000",
		pid:     "echo $PPID",
		except:  map[string]exception{"result": {because, printsOnly}, "displays": {because, printsOnly}},
	}
}

func java() language {
	return language{
		name:  "java",
		row:   "row execd/languages/java",
		print: `System.out.println("to out"); System.err.println("to err");`,
		value: "41 + 1",
		many:  fmt.Sprintf("for (int i = 0; i < %d; i++) System.out.println(i);", manyLines),
		slow:  fmt.Sprintf("for (int i = 0; i < %d; i++) { System.out.println(i); Thread.sleep(20); }", slowLines),
		set:   "int x = 41;", get: "System.out.println(x + 1);",
		raise: `System.out.println("before"); throw new IllegalStateException("bad");`, ename: "java.lang.IllegalStateException", evalue: "bad",
		wrong: "int y = nothing;", wrongName: "CompileError",
		endless: `System.out.println("on"); while (true) { }`,
		waits:   `System.out.println("on"); Thread.sleep(100_000_000);`,
		pid:     "System.out.println(ProcessHandle.current().parent().get().pid());",
		except: map[string]exception{
			"displays": {"JShell has values as text, and no way to show something else", printsOnly},
		},
	}
}

func javascript() language {
	display := fmt.Sprintf(`await Deno.jupyter.display({[Deno.jupyter.$display]: () => ({
	"image/png": %q, "application/json": {a: [1, 2]}, "text/html": "<b>é</b>",
})})`, picture(3, 2))
	return language{
		name:    "javascript",
		row:     "row execd/languages/javascript",
		print:   "console.log('to out'); console.error('to err')",
		value:   "41 + 1",
		display: display,
		many:    fmt.Sprintf("for (let i = 0; i < %d; i++) console.log(i)", manyLines),
		slow:    fmt.Sprintf("for (let i = 0; i < %d; i++) { console.log(i); await new Promise(r => setTimeout(r, 20)) }", slowLines),
		set:     "let x = 41", get: "console.log(x + 1)",
		raise: "console.log('before'); throw new TypeError('bad')", ename: "TypeError", evalue: "bad",
		wrong: "let = = 1", wrongName: "Error",
		endless: "console.log('on'); while (true) {}",
		waits:   "setInterval(() => 0, 1000); console.log('on'); await new Promise(() => 0)",
		pid:     "console.log(Deno.pid)",
		except: map[string]exception{
			"compile errors": {"Deno says that a cell does not compile, and no more: there is no traceback", compileErrorIsBare},
			"interrupt of a cell that waits": {
				"Deno interrupts what computes, not what waits for a promise: the kernel is ended, and the cell's error says so", interruptEnds,
			},
		},
	}
}

func typescript() language {
	l := javascript()
	l.name, l.row = "typescript", "row execd/languages/typescript"
	l.value = "(41 as number) + 1"
	l.set = "let x: number = 41"
	return l
}

func golang() language {
	const because = "a Go cell is a program, which has no value; GoNB shows other types through its module gonbui, which the image cannot fetch"
	return language{
		name: "go",
		row:  "row execd/languages/go",
		// Its standard input is at its end: a program that reads does not wait.
		print: "%%\nfmt.Scanln(new(string)); fmt.Println(\"to out\"); fmt.Fprintln(os.Stderr, \"to err\")",
		many:  fmt.Sprintf("%%%%\nfor i := range %d { fmt.Println(i) }", manyLines),
		slow:  fmt.Sprintf("%%%%\nfor i := range %d { fmt.Println(i); time.Sleep(20 * time.Millisecond) }", slowLines),
		set:   "func x() int { return 41 }", get: "%%\nfmt.Println(x() + 1)",
		raise: "%%\nfmt.Println(\"before\"); panic(\"bad\")", ename: "panic", evalue: "bad",
		wrong: "%%\nnothing()", wrongName: "ERROR",
		endless: "%%\nfmt.Println(\"on\"); for { }",
		waits:   "%%\nfmt.Println(\"on\"); time.Sleep(100000 * time.Second)",
		pid:     "%%\nfmt.Println(os.Getppid())",
		except:  map[string]exception{"result": {because, printsOnly}, "displays": {because, printsOnly}},
	}
}

// picture returns a PNG in base64. Nothing of the kernels has a part in it.
func picture(width, height int) string {
	var encoded bytes.Buffer
	if err := png.Encode(&encoded, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	return base64.StdEncoding.EncodeToString(encoded.Bytes())
}

// checkPNG decodes the picture that a cell has shown.
func checkPNG(t *testing.T, events said, width, height int) {
	t.Helper()
	var encoded string
	if err := json.Unmarshal(events.result("image/png"), &encoded); err != nil {
		t.Errorf("image/png: %s: %v", events.result("image/png"), err)
		return
	}
	data, err := base64.StdEncoding.DecodeString(string(bytes.ReplaceAll([]byte(encoded), []byte("\n"), nil)))
	must(t, err)
	shown, err := png.Decode(bytes.NewReader(data))
	must(t, err)
	if size := shown.Bounds().Size(); size.X != width || size.Y != height {
		t.Errorf("the picture is %v, want %d by %d", size, width, height)
	}
}

func equalJSON(got json.RawMessage, want string) bool {
	var a, b any
	return json.Unmarshal(got, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && reflect.DeepEqual(a, b)
}
