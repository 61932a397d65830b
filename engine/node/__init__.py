"""One node, as a value: `node` composes the machines, `admin` answers the operator."""
