package program

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// failpointDirectory is the variable of internal/failpoint that arms a program.
const failpointDirectory = "sandbox.internal/internal/failpoint.directory"

// Failpoints is a directory in which a test arms the failpoints (package internal/failpoint) of a
// program that BuildWithFailpoints has made, while it runs too.
type Failpoints string

// BuildWithFailpoints is Build of programs that are killed at their failpoints as often as armed
// says: the path of the directory as the programs see it. It need not exist while nothing is armed.
func BuildWithFailpoints(ctx context.Context, directory string, armed Failpoints, packages ...string) error {
	return build(ctx, directory, " -X "+failpointDirectory+"="+string(armed), packages)
}

// Arm has the next program that comes to the failpoint of that name killed, and so on as many times
// as there are kills, beside those that are left of earlier calls.
func (f Failpoints) Arm(name string, kills int) error {
	armed := filepath.Join(string(f), name)
	if err := os.MkdirAll(armed, 0o755); err != nil {
		return err
	}
	for range kills {
		file, err := os.CreateTemp(armed, "")
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Left returns how many kills at the failpoint of that name have not happened yet.
func (f Failpoints) Left(name string) (int, error) {
	files, err := os.ReadDir(filepath.Join(string(f), name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return len(files), err
}
