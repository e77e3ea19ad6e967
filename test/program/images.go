package program

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// inImages has the programs of bin/ that scripts/images.sh puts into an image.
var inImages = map[string][]string{
	"sandbox/execd:dev":         {"execd", "execd-init"},
	"sandbox/egress:dev":        {"egress", "egress-init"},
	"sandbox/task-executor:dev": {"task-executor", "task-executor-init"},
	"sandbox/server:dev":        {"sandbox-server"},
	"sandbox/controller:dev":    {"sandbox-controller"},
	"sandbox/ingress:dev":       {"sandbox-ingress"},
}

// UseImages makes the programs that are in images inputs of the test that calls it: in those of
// this repository that text, like a configuration, names. The test runs in a directory of the
// repository.
func UseImages(text string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			return errors.New("the test does not run in the repository: no go.mod in its directory or above")
		}
		root = filepath.Dir(root)
	}
	for image, programs := range inImages {
		if !strings.Contains(text, image) {
			continue
		}
		for _, name := range programs {
			_, _ = os.Stat(filepath.Join(root, "bin", name)) // an input also while it is not there
		}
	}
	return nil
}
