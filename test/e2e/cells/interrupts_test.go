package cells_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
)

// interrupts is how many signals a kernel gets in TestInterruptsAtRandomMoments. A thousand took
// two minutes of two processors.
const interrupts = 300

// TestInterruptsAtRandomMoments: a kernel of ours (deploy/kernels), or ipykernel as execd
// configures it, gets SIGINT again and again, whatever it does at that moment, while other
// processes compete for its processor. A cell runs to its end or is interrupted; none runs a part
// of a command or has the output of another, and variables are kept.
func TestInterruptsAtRandomMoments(t *testing.T) {
	d := sandboxDirect(t)
	d.background(t, "timeout 300 sh -c 'while :; do :; done'")
	for _, test := range []struct {
		language
		upTo int // milliseconds between two signals
	}{{bash(), 15}, {java(), 60}, {python(), 30}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			id := d.newContext(t, test.name)
			d.run(t, id, test.set).good(t)
			pid, err := strconv.Atoi(strings.TrimSpace(d.run(t, id, test.pid).good(t).text("stdout")))
			must(t, err)
			// The pauses let some cells run to their end in a kernel that needs longer for one than
			// there is between two signals.
			signals := d.background(t, fmt.Sprintf(`bash -c 'for ((i = 0; i < %d; i++)); do
				((i %% 25)) || sleep 0.5; sleep "$(printf 0.%%03d $((RANDOM %% %d)))"; kill -INT %d || exit; done'`,
				interrupts, test.upTo, pid))
			var slow strings.Builder
			for i := range slowLines {
				fmt.Fprintln(&slow, i)
			}
			cells := []struct{ code, stdout, interrupted string }{
				{test.get, "42\n", "42\n"},
				{test.print, "to out\n", "to out\n"},
				{test.slow, slow.String(), slow.String()},
			}
			if test.name == "bash" { // see deploy/kernels/bash_kernel.py: what echo was writing to stderr
				cells[1].interrupted += "to err\n"
			}
			whole, cut := 0, 0
			for i := 0; d.runs(t, signals); i++ {
				cell := cells[i%len(cells)]
				events := d.run(t, id, cell.code)
				out, end := events.text("stdout"), events.end()
				switch {
				case end.Type == "execution_complete" && out == cell.stdout:
					whole++
				case end.Type == "error" && end.Error.Ename == "KeyboardInterrupt" && strings.HasPrefix(cell.interrupted, strings.TrimSuffix(out, "\n")) &&
					!strings.Contains(strings.Join(end.Error.Traceback, "\n"), "has ended"): // nor has the process of the language
					cut++
				default:
					t.Fatalf("cell %d, %s: stdout %q, stderr %q, %s", i, cell.code, out, events.text("stderr"), end.data)
				}
			}
			test.remembers(t, d, id)
			// No interrupt comes late, not even one that the kernel of the language repeats.
			for until := time.Now().Add(6 * time.Second); time.Now().Before(until); {
				if out := d.run(t, id, test.slow).good(t).text("stdout"); out != slow.String() {
					t.Fatalf("after the last signal, %s: stdout %q", test.slow, out)
				}
			}
			if whole == 0 || cut == 0 {
				t.Errorf("%d cells ran to their end and %d were interrupted: the test needs both", whole, cut)
			}
			if got := d.command(t, "kill -0 "+strconv.Itoa(pid)+" && echo lives"); got != "lives" {
				t.Error("the kernel is another one")
			}
			t.Logf("%d signals: %d cells ran to their end, %d were interrupted", interrupts, whole, cut)
		})
	}
}

// TestJavaInterrupts: what a cell does when it is interrupted costs no variables.
func TestJavaInterrupts(t *testing.T) {
	d := sandboxDirect(t)
	java := java()
	id := d.newContext(t, java.name)
	d.run(t, id, java.set).good(t)
	for _, test := range []struct{ name, code string }{
		{"catches everything", `System.out.println("on"); while (true) { try { Thread.sleep(1000); } catch (Throwable all) { } }`},
		{"calls itself", `int f(int n) { return n == 0 ? 0 : f(n - 1) + f(n - 1); } System.out.println("on"); f(100)`},
		{"makes its value's text", `new Object() { public String toString() { System.out.println("on"); while (true) { } } }`},
		{"waits for its own thread", `Thread own = new Thread(() -> { while (true) { } }); own.start(); System.out.println("on"); own.join();`},
		// The first call is long enough for the virtual machine to compile its loop.
		{"is in the class library", `new Random().ints(100_000_000).sum(); System.out.println("on"); new Random().ints().sum()`},
	} {
		t.Run(test.name, func(t *testing.T) {
			interrupted(t, d, id, test.code)
			java.remembers(t, d, id)
		})
	}
}

// background starts a command beside the kernels and returns its id.
func (d *daemon) background(t *testing.T, command string) string {
	t.Helper()
	background := true
	answer, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: command, Background: &background})
	must(t, err)
	response, err := gen.ParseRunCommandResponse(answer)
	must(t, err)
	if response.JSON200 == nil {
		t.Fatalf("%s: %s: %s", command, response.Status(), response.Body)
	}
	return response.JSON200.ID
}

// runs reports whether a command has not ended. It fails when the command has ended badly.
func (d *daemon) runs(t *testing.T, id string) bool {
	t.Helper()
	answer, err := d.client.GetCommandStatus(t.Context(), id)
	must(t, err)
	response, err := gen.ParseGetCommandStatusResponse(answer)
	must(t, err)
	if response.JSON200 == nil {
		t.Fatalf("status of a command: %s: %s", response.Status(), response.Body)
	}
	if code := response.JSON200.ExitCode; !response.JSON200.Running && (code == nil || *code != 0) {
		t.Fatalf("a command ended with %+v", response.JSON200)
	}
	return response.JSON200.Running
}

// TestErrorInNoLine: an instruction that belongs to no line, as some in which an interrupt may
// come, has a traceback.
func TestErrorInNoLine(t *testing.T) {
	d := localDirect(t)
	id := d.newContext(t, "python")
	d.run(t, id, `def f(): return 1 / 0
f.__code__ = f.__code__.replace(co_linetable=b"\xff" * 16)`).good(t)
	for _, code := range []string{"f()", "try: f()\nexcept ZeroDivisionError as e: raise ZeroDivisionError('again')"} {
		events := d.run(t, id, code)
		if out, end := events.text("stdout")+events.text("stderr"), events.end(); out != "" || end.Error.Ename != "ZeroDivisionError" || len(end.Error.Traceback) == 0 {
			t.Errorf("%s: it prints %q, and ends with %s", code, out, end.data)
		}
	}
}

// TestErrorThatCannotChange: an exception whose attributes cannot be set, as those of a frozen data
// class, has its traceback.
func TestErrorThatCannotChange(t *testing.T) {
	d := localDirect(t)
	id := d.newContext(t, "python")
	events := d.run(t, id, `from dataclasses import dataclass
@dataclass(frozen=True)
class Fixed(Exception): code: int
raise Fixed(7)`)
	if out, end := events.text("stdout")+events.text("stderr"), events.end(); out != "" || end.Error.Ename != "Fixed" || len(end.Error.Traceback) == 0 {
		t.Errorf("the cell prints %q, and ends with %s", out, end.data)
	}
}
