package process_test

import (
	"slices"
	"testing"

	"sandbox.internal/execd/process"
)

func TestEnvironment(t *testing.T) {
	t.Parallel()
	got := process.Environment([]string{"A=EXECD_", "EXECD_ACCESS_TOKEN=x", "PATH=/bin", "EXECD_LOG_FILE=y", "MY_EXECD_=z"})
	if want := []string{"A=EXECD_", "PATH=/bin", "MY_EXECD_=z"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
