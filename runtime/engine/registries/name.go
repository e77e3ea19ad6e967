// Package registries says which registries of images may be asked, and for which names, for the
// engines and for who calls them.
package registries

import (
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

// Name is the name of an image, with what it leaves out filled in.
type Name struct {
	Full       string // with registry, and tag or digest
	Registry   string // host of the registry, perhaps with a port, such as docker.io
	Repository string // Full without tag and digest
	Explicit   bool   // the registry is in the name as it is written
	Digested   bool   // a digest says what the image is, whoever has it
}

// imageID is accepted besides names: an image without a name can be used, but not pulled.
var imageID = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// IsID reports whether ref is an image's id and no name.
func IsID(ref string) bool { return imageID.MatchString(ref) }

// Parse reads the name of an image. A name without tag and digest means the tag latest.
func Parse(ref string) (Name, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return Name{}, err
	}
	name := Name{Full: named.String(), Registry: reference.Domain(named), Repository: named.Name()}
	_, name.Digested = named.(reference.Digested)
	first, _, _ := strings.Cut(ref, "/")
	name.Explicit = strings.HasPrefix(ref, first+"/") && (first == name.Registry || strings.EqualFold(first, "index.docker.io"))
	return name, nil
}

// ownRepositories are of the images of this project. No registry has them: what Docker Hub has
// below this name is of whoever registers it there.
const ownRepositories = "docker.io/sandbox/"

// Own reports whether the name is of an image of this project, which is loaded and never pulled.
// With a digest it is pulled like any other: what comes is what the digest says.
func (n Name) Own() bool { return strings.HasPrefix(n.Repository, ownRepositories) && !n.Digested }
