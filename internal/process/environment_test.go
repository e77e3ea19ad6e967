package process_test

import (
	"slices"
	"strings"
	"testing"

	"sandbox.internal/internal/process"
)

func TestEnvironment(t *testing.T) {
	t.Parallel()
	got := process.Environment([]string{"A=EXECD_", "EXECD_ACCESS_TOKEN=x", "PATH=/bin", "EXECD_LOG_FILE=y", "MY_EXECD_=z"})
	if want := []string{"A=EXECD_", "PATH=/bin", "MY_EXECD_=z"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestVariable(t *testing.T) {
	t.Parallel()
	env := []string{"A=1", "AB=2", "A=3=4", "EMPTY="}
	for _, test := range []struct {
		name, want string
		found      bool
	}{{"A", "3=4", true}, {"AB", "2", true}, {"EMPTY", "", true}, {"B", "", false}} {
		if got, found := process.Variable(env, test.name); got != test.want || found != test.found {
			t.Errorf("%s: got %q, %v, want %q, %v", test.name, got, found, test.want, test.found)
		}
	}
}

func TestAddVariables(t *testing.T) {
	t.Parallel()
	got, err := process.AddVariables([]string{"Z=0"}, map[string]string{"B": "", "A": "x=y"})
	if want := []string{"Z=0", "A=x=y", "B="}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"A=B": "x"}, {"A\x00": "x"}, {"A": "x\x00"}} {
		for name := range bad {
			_, err := process.AddVariables(nil, bad)
			if err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, "\x00")) {
				t.Errorf("%q: error is %v, want one that names the variable", bad, err)
			}
		}
	}
}

func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	home := []string{"HOME=/home/me"}
	for _, test := range []struct {
		dir, want string
		env       []string
	}{
		{"", "/base", home},
		{"sub/../other", "/base/other", home},
		{"/abs", "/abs", home},
		{"~", "/home/me", home},
		{"~/sub", "/home/me/sub", home},
		{"~other", "/base/~other", home},
		{"~/sub", "/sub", nil},
		{"~", "/", []string{"HOME="}},
	} {
		if got := process.WorkingDirectory(test.dir, "/base", test.env); got != test.want {
			t.Errorf("%q with %q: got %q, want %q", test.dir, test.env, got, test.want)
		}
	}
}
