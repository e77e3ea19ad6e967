package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	long := strings.Repeat("long ", 100)
	for name, tc := range map[string]struct{ printed, want string }{
		"nothing": {"ok  \tm/a\t0.1s\n?   \tm/b\t[no test files]\nok  \tm/c\t(cached)\n", ""},
		"tests": {
			"ok  \tm/a\t0.1s\n--- FAIL: TestOne (0.10s)\n    --- FAIL: TestOne/part (0.00s)\n        a_test.go:1: no\n            more\n" +
				"--- FAIL: TestTwo (0.00s)\n    b_test.go:2: " + long + "\n    b_test.go:3: two\n    b_test.go:4: three\n" +
				"FAIL\nFAIL\tm/b\t1.2s\nok  \tm/c\t0.1s\n",
			"TestOne/part: a_test.go:1: no\n" + ("TestTwo: b_test.go:2: " + long)[:width] + "\nTestTwo: b_test.go:3: two\ngo test -race -count=1 -run '^(TestOne|TestTwo)$' m/b\n",
		},
		"two packages": {
			"--- FAIL: TestOne (0.10s)\nFAIL\nFAIL\tm/a\t1.2s\n--- FAIL: TestTwo (0.10s)\nFAIL\nFAIL\tm/b\t1.2s\nFAIL\n",
			"go test -race -count=1 -run '^(TestOne)$' m/a\ngo test -race -count=1 -run '^(TestTwo)$' m/b\n",
		},
		"the end of the time": {
			"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestLong (9m59s)\n\t\tTestLong/part (2.5s)\n\n" +
				"goroutine 1 [running]:\nFAIL\tm/a\t600.1s\nFAIL\n",
			"go test -race -count=1 -run '^(TestLong)$' m/a\n",
		},
		"no program":       {"# m/a\na.go:1: no\nFAIL\tm/a [build failed]\nFAIL\n", "go test -race -count=1 m/a # [build failed]\n"},
		"a process ended":  {"exit status 2\nFAIL\tm/a\t0.1s\nFAIL\n", "go test -race -count=1 m/a\n"},
		"a line of output": {"--- FAIL: it says\nok  \tm/a\t0.1s\nFAIL\tm/b\t0.1s\n", "go test -race -count=1 m/b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := run(strings.NewReader(tc.printed), &out, []string{"go", "test", "-race"}); err != nil {
				t.Fatal(err)
			}
			if out.String() != tc.want {
				t.Errorf("got\n%swant\n%s", out.String(), tc.want)
			}
		})
	}
}

// TestOneScreen: the messages fit on a screen, and so do the commands below, however much has
// failed.
func TestOneScreen(t *testing.T) {
	var printed, out strings.Builder
	for i := range 100 {
		fmt.Fprintf(&printed, "--- FAIL: TestOne (0.10s)\n    a_test.go:1: no\nFAIL\nFAIL\tm/%d\t1.2s\n", i)
	}
	if err := run(strings.NewReader(printed.String()), &out, []string{"go", "test"}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2*shown+1 || !strings.HasSuffix(out.String(), "and 70 packages more\n") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}
