package e2e_test

import (
	"bytes"
	"testing"

	"sandbox.internal/server/cli"
	"sandbox.internal/test/e2e/lives"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{})
	environment := func(name string) string {
		return map[string]string{"SANDBOX_URL": s.URL, "SERVICE_API_KEY": lives.AdminKey}[name]
	}
	var stdout, stderr bytes.Buffer
	if code := cli.Run(t.Context(), []string{"demo"}, environment, &stdout,
		&stderr); code != cli.ExitOK {
		t.Errorf("exit code %d\n%s\n%s", code, &stdout, &stderr)
	}
	for _, sandbox := range s.Everything(t) {
		if !lives.Final(sandbox.Status.State) && sandbox.Status.State != "Stopping" {
			t.Errorf("the demo leaves a sandbox %s", sandbox.Status.State)
		}
	}
}
