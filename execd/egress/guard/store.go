package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandbox.internal/execd/egress/policy"
)

// Store keeps the policy in a file, so that it survives a restart of the guard.
type Store struct{ path string }

// NewStore returns a store in the folder, which is made when it is not there.
func NewStore(folder string) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	return &Store{path: filepath.Join(folder, "policy.json")}, nil
}

// Load returns the policy that was saved last, or the fallback when none was. A file that cannot be read is an error together with
// a policy that denies everything: nothing must fall back to what allows more.
func (s *Store) Load(fallback policy.Policy) (policy.Policy, error) {
	closed := policy.Policy{DefaultAction: policy.Deny}
	data, err := os.ReadFile(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fallback, nil
	case err != nil:
		return closed, fmt.Errorf("read the saved policy: %w", err)
	}
	saved, err := policy.Parse(data)
	if err != nil {
		return closed, fmt.Errorf("read the saved policy %s: %w", s.path, err)
	}
	return saved, nil
}

// Save replaces the file in one step.
func (s *Store) Save(p policy.Policy) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("save the policy: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(s.path), "policy-*")
	if err != nil {
		return fmt.Errorf("save the policy: %w", err)
	}
	defer os.Remove(file.Name()) // it is not there any more when all went well
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), s.path)
	}
	if err != nil {
		return fmt.Errorf("save the policy: %w", err)
	}
	return nil
}
