package kerneltest

import (
	"encoding/base64"
	"fmt"

	"sandbox.internal/runtime/kernel"
)

// Language is the code, in a language, for what the suite checks. Code that a language cannot have
// is empty, and not tested.
type Language struct {
	Name string // of the test
	Spec string // of the kernel

	Cells []Cell

	SetX, PrintX   string // set a variable to 41; print its value to stdout without a newline
	PrintProcess   string // the id of the kernel's process, to stdout
	PrintDirectory string // the working directory, to stdout
	// Endless prints "begun" to stdout and does not end by itself.
	Endless string
	// InterruptName is the name of the error that an interrupt makes; empty means that it may be
	// any.
	InterruptName string
	// NoInterrupt: the kernel cannot be interrupted.
	NoInterrupt bool
	// ManyLines prints the numbers from 0 to 99999 to stdout, one to a line.
	ManyLines string
}

// Cell is a cell and what must come of it. Empty fields want nothing.
type Cell struct {
	Name, Code     string
	Stdout, Stderr string
	// Result and Display are the exact JSON of MIME types; others may come with them.
	Result, Display map[string]string
	// NoResult: a result is wrong.
	NoResult bool
	// Error is the name, and ErrorValue the text, of what the cell must raise. ErrorAny stands for
	// some error.
	Error, ErrorValue string
	// PNG wants a picture of this width and height among the displays.
	PNG [2]int
	// Order is the order of the types of outputs, neighbours of the same type as one.
	Order []kernel.OutputType
}

// ErrorAny is the Error of a cell that raises something whose name does not matter.
const ErrorAny = "*"

// Python is the language of ipykernel.
func Python() Language {
	const pngWidth, pngHeight = 7, 5
	picture := base64.StdEncoding.EncodeToString(pngOf(pngWidth, pngHeight))
	return Language{
		Name: "python", Spec: "python3",
		SetX: "x = 41", PrintX: "print(x, end='')",
		PrintProcess:   "import os; print(os.getpid())",
		PrintDirectory: "import os; print(os.getcwd())",
		Endless:        "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)",
		InterruptName:  "KeyboardInterrupt",
		ManyLines:      "for i in range(100000): print(i)",
		Cells: []Cell{
			{Name: "result", Code: "1+1", Result: map[string]string{"text/plain": `"2"`},
				Order: []kernel.OutputType{kernel.OutputCount, kernel.OutputResult}},
			{Name: "empty", Code: "", NoResult: true},
			{Name: "comment", Code: "# nothing", NoResult: true},
			{Name: "unicode", Code: "print('žluťoučký 猫 🐈')\n'猫'", Stdout: "žluťoučký 猫 🐈\n", Result: map[string]string{"text/plain": `"'猫'"`}},
			{Name: "streams", Code: "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr, flush=True)\nprint('c', flush=True)\n3",
				Stdout: "a\nc\n", Stderr: "b\n", Result: map[string]string{"text/plain": `"3"`},
				Order: []kernel.OutputType{kernel.OutputCount, kernel.OutputStdout, kernel.OutputStderr, kernel.OutputStdout, kernel.OutputResult}},
			{Name: "stdout before the error", Code: "print('a', end='')\n1/0", Stdout: "a", Error: "ZeroDivisionError", ErrorValue: "division by zero",
				Order: []kernel.OutputType{kernel.OutputCount, kernel.OutputStdout, kernel.OutputError}},
			{Name: "syntax error", Code: "for", Error: "SyntaxError"},
			{Name: "input", Code: "input('?')", Error: "StdinNotImplementedError"},
			{Name: "html", Code: "class H:\n  def _repr_html_(self): return '<b>é</b>'\nH()", Result: map[string]string{"text/html": `"<b>é</b>"`}},
			{Name: "json", Code: "class J:\n  def _repr_json_(self): return {'a': [1, None, 12345678901234567890]}\nJ()",
				Result: map[string]string{"application/json": `{"a":[1,null,12345678901234567890]}`}},
			{Name: "display", Code: "from IPython.display import display\ndisplay({'application/json': [1, 2], 'text/plain': 'x'}, raw=True)",
				Display: map[string]string{"application/json": `[1,2]`, "text/plain": `"x"`}, NoResult: true},
			{Name: "update of a display", Code: "h = display('one', display_id=True)\nh.update('two')",
				Display: map[string]string{"text/plain": `"'two'"`}},
			{Name: "png", Code: fmt.Sprintf("import base64\nfrom IPython.display import Image\ndisplay(Image(base64.b64decode(%q)))", picture),
				PNG: [2]int{pngWidth, pngHeight}},
			{Name: "large", Code: "'x' * (3 << 20)", Order: []kernel.OutputType{kernel.OutputCount, kernel.OutputResult}},
		},
	}
}
