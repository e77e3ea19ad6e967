package jupyter_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
	"sandbox.internal/test/wait"
)

func TestDirectFirstCellLosesNothing(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	k := startPython(t, host)
	if got := run(t, k,
		`import os; print("first", [v for v in os.environ if v.startswith("EXECD_")], os.getcwd() == os.environ["PWD"])`); got != "first [] True\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectLargeMessages(t *testing.T) {
	const size = 50 << 20
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	if got := run(t, k, fmt.Sprintf(`print("x" * %d)`, size)); len(got) != size+1 {
		t.Errorf("got %d bytes, want %d", len(got), size+1)
	}
}

// A socket of ZeroMQ holds 1000 messages for a reader that is behind, and throws away what comes on
// top: with the limit of old, this test failed as soon as something else kept the processors busy.
func TestDirectManySmallMessages(t *testing.T) {
	const count = 3000
	load(t)
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	for range 3 {
		var numbers []string
		reply, err := k.Execute(t.Context(), fmt.Sprintf(`
from IPython.display import display
for i in range(%d): display({"text/plain": str(i)}, raw=True)`, count), func(o kernel.Output) {
			if o.Type == kernel.OutputDisplay {
				numbers = append(numbers, string(o.Data["text/plain"]))
			}
		})
		if err != nil || reply.Error != nil {
			t.Fatal(err, reply.Error)
		}
		for i, number := range numbers {
			if number != strconv.Quote(strconv.Itoa(i)) {
				t.Fatalf("message %d is %s", i, number)
			}
		}
		if len(numbers) != count {
			t.Errorf("got %d messages of %d", len(numbers), count)
		}
	}
}

// load keeps every processor busy until the test ends, with processes, as other users of a machine
// do.
func load(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = busy.Wait() }) // killed: the test's context ends before its cleanups
	}
}

// A reader that stops for a while loses nothing either: the kernel goes on, and what it says waits.
func TestDirectSlowReader(t *testing.T) {
	const count = 3000
	dir := t.TempDir()
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	got := 0
	reply, err := k.Execute(t.Context(), fmt.Sprintf(`
from IPython.display import display
for i in range(%d): display({"text/plain": str(i)}, raw=True)
open(%q, "w").close()`, count, dir+"/done"), func(o kernel.Output) {
		if o.Type != kernel.OutputDisplay {
			return
		}
		if got == 0 {
			wait.Until(t, "the cell has said everything", func() bool {
				_, err := os.Stat(dir + "/done")
				return err == nil
			})
		}
		got++
	})
	if err != nil || reply.Error != nil || got != count {
		t.Errorf("%d of %d messages: %v, %+v", got, count, err, reply.Error)
	}
}

// What child processes print belongs to the cell, in its place, whole, and whatever its characters.
func TestDirectOutputOfChildren(t *testing.T) {
	load(t)
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	for i := range 50 {
		if got, want := run(t, k,
			fmt.Sprintf(
				"import os\nprint('a')\nos.system('echo %d')\nprint('b')\nos.system('echo c')\nNone", i)), fmt.Sprintf("a\n%d\nb\nc\n", i); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	const count = 200_000
	if got := run(t, k,
		fmt.Sprintf(`os.system("yes ž猫 | tr -d '\n' | head -c %d"); None`,
			5*count)); got != strings.Repeat("ž猫", count) {
		t.Errorf("%d bytes arrived of %d", len(got), 5*count)
	}
	if got := run(t, k,
		`import subprocess; subprocess.run(["echo", "still"]); None`); got != "still\n" {
		t.Errorf("got %q", got)
	}
	if got := run(t, k, `
import os
pid = os.fork()
if pid == 0:
    print("child", flush=True)
    os._exit(0)
os.waitpid(pid, 0); None`); got != "child\n" {
		t.Errorf("from a fork: %q", got)
	}
}

// A history file that kernels share makes them print errors into cells.
func TestDirectKernelsShareNoHistory(t *testing.T) {
	if got := run(t, startPython(t, newDirect(t, jupyter.DirectOptions{})),
		"print(get_ipython().history_manager.hist_file)"); got != ":memory:\n" {
		t.Errorf("the history is in %q", got)
	}
}

// TestDirectCellsThatKernelsStumbleOver: what is no character, a closed output, and a question to
// the pager.
func TestDirectCellsThatKernelsStumbleOver(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	if got, want := run(t, k, `print("before\ncut: \ud83d\nafter")`), "before\ncut: \ufffd\nafter\n"; got != want {
		t.Errorf("a lone surrogate: got %q, want %q", got, want)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		run(t, k, "import sys; sys."+stream+".close()")
		if got := run(t, k, `print("still")`); got != "still\n" {
			t.Errorf("after %s was closed: got %q", stream, got)
		}
	}
	var shown []string
	reply, err := k.Execute(t.Context(), "len?", func(o kernel.Output) {
		shown = append(shown, string(o.Data["text/plain"]))
	})
	if err != nil || reply.Error != nil || !strings.Contains(strings.Join(shown, ""), "Return the number of items") {
		t.Errorf("len? shows %q; %v, %v", shown, err, reply.Error)
	}
}
