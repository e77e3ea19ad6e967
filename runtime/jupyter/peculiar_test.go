package jupyter

import (
	"encoding/json"
	"testing"

	"sandbox.internal/runtime/kernel"
)

func TestGoNBFailures(t *testing.T) {
	for _, test := range []struct {
		name        string
		stderr      []string
		wants, says string
	}{
		{"nothing", nil, "", ""},
		{"its own words", []string{"exit status 3 is what I expect\n"}, "", ""},
		{"words before the end", []string{"exit status 3\n", "and on\n"}, "", ""},
		{"exit", []string{"bye\n", "exit status 3\n"}, "ExitCode", "3"},
		{"panic", []string{"panic: bo", "om\n\ngoroutine 1 [running]:\n", "exit status 2\n"},
			"panic", "boom"},
		{"deadlock", []string{"fatal error: all goroutines are asleep - deadlock!\n",
			"exit status 2\n"}, "fatal error", "all goroutines are asleep - deadlock!"},
		{"interrupt", []string{"signal: interrupt\n"}, "KeyboardInterrupt", ""},
		{"interrupt that it caught", []string{"^C\nexit status 1\n"}, "KeyboardInterrupt", ""},
		{"killed", []string{"signal: killed\n"}, "Signal", "killed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var watch gonbWatch
			outputs := 0
			handle := watch.listen(func(kernel.Output) { outputs++ })
			for _, text := range test.stderr {
				handle(kernel.Output{Type: kernel.OutputStderr, Text: text})
			}
			handle(kernel.Output{Type: kernel.OutputStdout, Text: "late\n"})
			if outputs != len(test.stderr)+1 {
				t.Errorf("%d outputs were passed on", outputs)
			}
			got := watch.failure()
			if got == nil {
				got = &kernel.Error{}
			}
			if got.Name != test.wants || got.Value != test.says ||
				(got.Name != "") != (len(got.Traceback) > 0) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestDenoColours(t *testing.T) {
	var got json.RawMessage
	handle := denoHandle(&request{}, func(o kernel.Output) { got = o.Data["text/plain"] })
	for from, want := range map[string]string{
		`"\u001b[33m42\u001b[39m"`:  `"42"`,
		`"\"a\\x1b[31mb\""`:         `"\"a\\x1b[31mb\""`,
		`"\u001B[1;32mnew\u001b[m"`: `"new"`,
	} {
		handle(kernel.Output{Type: kernel.OutputResult,
			Data: map[string]json.RawMessage{"text/plain": json.RawMessage(from)}})
		if string(got) != want {
			t.Errorf("%s became %s, want %s", from, got, want)
		}
	}
}
