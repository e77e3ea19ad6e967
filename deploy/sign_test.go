package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// TestSignature: what scripts/sign.sh has signed passes minisign's check with its comment, a
// changed file does not, and the same file and key make the same signature.
func TestSignature(t *testing.T) {
	t.Parallel()
	const script = "../scripts/sign.sh"
	_, version, _ := strings.Cut(read(t, script), "\nMINISIGN=")
	version, _, _ = strings.Cut(version, "\n")
	directory := t.TempDir()
	secret, public, file := filepath.Join(directory, "secret"), filepath.Join(directory, "public"), filepath.Join(directory, "SHA256SUMS")
	write(t, file, "sums\n")
	minisign := func(args ...string) (string, error) {
		command := wait.Command(t, "go", append([]string{"run", version}, args...)...)
		command.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0") // as the script, for which it is compiled anyway
		output, err := command.CombinedOutput()
		return string(output), err
	}
	if output, err := minisign("-G", "-W", "-s", secret, "-p", public); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var signatures [2]string
	for i := range signatures {
		if output, err := wait.Command(t, script, secret, file, "sandbox v1.2.3").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		signatures[i] = read(t, file+".minisig")
		if err := os.Remove(file + ".minisig"); err != nil {
			t.Fatal(err)
		}
	}
	if signatures[0] != signatures[1] {
		t.Errorf("two signatures:\n%s\n%s", signatures[0], signatures[1])
	}
	write(t, file+".minisig", signatures[0])
	if output, err := minisign("-V", "-p", public, "-m", file); err != nil || !strings.Contains(output, "sandbox v1.2.3") {
		t.Errorf("%v\n%s", err, output)
	}
	write(t, file, "other sums\n")
	if output, err := minisign("-V", "-p", public, "-m", file); err == nil {
		t.Errorf("a changed file passes:\n%s", output)
	}
	if output, err := wait.Command(t, script, public, file, "x").CombinedOutput(); err == nil || !strings.Contains(string(output), "must be a secret key") {
		t.Errorf("a public key instead of the secret one: %v\n%s", err, output)
	}
}
