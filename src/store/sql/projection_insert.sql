-- Records a projection that is started for the first time. Runs under the exclusive generation lock.
INSERT INTO tidegate.projection (name, live_generation)
VALUES ($1, 1)
